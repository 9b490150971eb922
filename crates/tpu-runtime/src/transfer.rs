//! Between host memory and storages.

use crate::capture;
use crate::elements::element_type;
use crate::explain::Why;
use crate::fault::Fault;
use crate::slot::Slot;
use crate::{CallArg, Device, Form, MetaOut, Outcome, Storage, TensorArg, Value};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tpu_base::ErrorKind;
use tpu_graph::geometry::{Base, View, base_for, is_whole};
use tpu_pjrt::HostMemory;

/// From this many bytes on, an upload copies once itself and gives the copy away: plugins copy large arrays slowly.
const ADOPT: usize = 1 << 14;

impl Device {
    /// Whether the tensor covers its storage densely: uploads then come in the order of its strides.
    pub fn is_whole(t: &TensorArg<'_, Slot>) -> bool {
        let Some(s) = t.storage else { return false };
        let base = Base::new(tpu_base::DType::U8, [s.nbytes as i64].as_slice());
        is_whole(&base, &View::new(t.dtype, t.sizes, t.strides, t.offset))
    }

    /// Replaces the storage of `t`, which must cover it densely, by `bytes`: the elements in memory order.
    ///
    /// # Errors
    /// Out of memory; a size that doesn't fit; what the plugin said.
    pub fn upload(&self, t: &TensorArg<'_, Slot>, bytes: &[u8]) -> Result<(), Fault> {
        let Some(storage) = t.storage else {
            return Err(Fault::new(ErrorKind::Bug, "upload to a host tensor"));
        };
        if bytes.len() as u64 != storage.nbytes {
            let what = format!("upload of {} bytes into a storage of {}", bytes.len(), storage.nbytes);
            return Err(Fault::new(ErrorKind::Bug, what));
        }
        let base = base_for(t.dtype, t.sizes, t.strides, t.offset, storage.nbytes as i64);
        self.fill(storage, base, bytes)
    }

    /// Writes `bytes`, the elements in row-major order, through a view that covers only part of its storage; `copy` is the
    /// registered form of `copy_`.
    ///
    /// # Errors
    /// As [`Device::upload`]; what the write itself ran into.
    pub fn upload_part(&self, copy: &Arc<Form>, t: &TensorArg<'_, Slot>, bytes: &[u8]) -> Result<(), Arc<Fault>> {
        if t.sizes.contains(&0) {
            return Ok(());
        }
        let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(1, t.sizes.len());
        for d in (1..t.sizes.len()).rev() {
            strides[d - 1] = strides[d] * t.sizes[d];
        }
        let sent = Storage::empty(bytes.len() as u64);
        let source = TensorArg { storage: Some(&sent), strides: &strides, offset: 0, conj: false, neg: false, ..*t };
        self.upload(&source, bytes).map_err(Arc::new)?;
        let args = [CallArg::Tensor(*t), CallArg::Tensor(source), CallArg::Bool(false)];
        let meta = MetaOut { dtype: t.dtype, sizes: t.sizes.into(), strides: t.strides.into() };
        for _ in 0..2 {
            match self.call(copy, &args)? {
                Outcome::Called(_) => return Ok(()),
                Outcome::NeedMeta => self.define(copy, &args, &[Some(meta.clone())], ""),
                Outcome::Fallback(why) => return Err(Arc::new(Fault::new(ErrorKind::Bug, why))),
            }
        }
        Err(Arc::new(Fault::new(ErrorKind::Bug, "a signature was not kept")))
    }

    /// A value of `base` from `bytes`, put into `storage`.
    fn fill(&self, storage: &Storage, base: Base, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        storage.set(None); // what it held may go before the new comes
        self.make_room(bytes.len() as u64)?;
        let element = element_type(base.dtype);
        let buffer = if bytes.len() < ADOPT {
            self.client.buffer_from_host(bytes, element, &base.dims, &self.device)?
        } else {
            let memory = HostMemory::copy_of(bytes)?;
            self.client.buffer_adopting(memory, element, &base.dims, &self.device)?
        };
        let slot = Slot::pending(bytes.len() as u64, &self.memory);
        slot.fill(Ok(buffer));
        storage.set(Some(Value::new(base, slot)));
        Ok(())
    }

    /// Waits until the storage's current value is computed; `Ok(false)` when the time ran out.
    ///
    /// # Errors
    /// The fault that poisoned the value.
    pub fn wait_storage(&self, storage: &Storage, timeout: Option<Duration>) -> Result<bool, Arc<Fault>> {
        let Some(value) = storage.value() else { return Ok(true) };
        if value.payload.get().is_none() && capture::is_open() {
            return Err(capture::no_value());
        }
        if value.is_deferred() {
            self.flush(Why::Read);
        }
        if !self.progress.wait(timeout, || value.payload.get().is_some()) {
            return Ok(false);
        }
        let buffer = match value.payload.get() {
            Some(Ok(b)) => b,
            Some(Err(f)) => return Err(f.clone()),
            None => return Ok(false),
        };
        let ready = || buffer.is_ready().unwrap_or(true);
        if !ready() {
            if let Ok(event) = buffer.ready_event() {
                let progress = self.progress.clone();
                drop(event.on_ready(move |_| progress.notify()));
            }
            if !self.progress.wait(timeout, ready) {
                return Ok(false);
            }
        }
        buffer.wait().map(|()| true).map_err(|e| Arc::new(e.into()))
    }

    /// Copies bytes `offset..offset + dst.len()` of a storage. Waits for its value.
    ///
    /// # Errors
    /// The fault that poisoned the value; what the plugin said.
    pub fn download(&self, storage: &Storage, offset: u64, dst: &mut [u8]) -> Result<(), Arc<Fault>> {
        if dst.is_empty() {
            return Ok(());
        }
        if offset.checked_add(dst.len() as u64).is_none_or(|end| end > storage.nbytes) {
            let what = format!("bytes {offset}+{} of a storage of {}", dst.len(), storage.nbytes);
            return Err(Arc::new(Fault::new(ErrorKind::Bug, what)));
        }
        self.wait_storage(storage, None)?;
        let Some(value) = storage.value() else {
            dst.fill(0);
            return Ok(());
        };
        let buffer = match value.payload.get() {
            Some(Ok(b)) => b,
            Some(Err(f)) => return Err(f.clone()),
            None => return Err(Arc::new(Fault::new(ErrorKind::Bug, "a value vanished while it was read"))),
        };
        let fail = |e: tpu_pjrt::Error| Arc::new(Fault::from(e));
        let whole = value.base.nbytes() as usize;
        if offset == 0 && dst.len() == whole {
            return buffer.to_host(dst).map_err(fail);
        }
        // raw bytes lie as in the base only where layouts are plain, as on the host's own memory
        if self.config.kind == "cpu" && buffer.copy_raw_to_host(dst, offset as usize).is_ok() {
            return Ok(());
        }
        let mut all = vec![0; whole];
        buffer.to_host(&mut all).map_err(fail)?;
        let (start, end) = (offset as usize, offset as usize + dst.len());
        match all.get(start..end.min(whole)) {
            Some(part) => {
                dst[..part.len()].copy_from_slice(part);
                dst[part.len()..].fill(0);
            }
            None => dst.fill(0),
        }
        Ok(())
    }

    /// A storage of `nbytes` with the leading bytes of `old`, the rest zeros.
    ///
    /// # Errors
    /// As [`Device::download`] and [`Device::upload`].
    pub fn resized(&self, old: &Storage, nbytes: u64) -> Result<Storage, Arc<Fault>> {
        let new = Storage::empty(nbytes);
        let Some(value) = old.value() else { return Ok(new) };
        // through the host: resizing a storage with contents is rare, and a program for each size pair is dear
        let mut bytes = vec![0; nbytes as usize];
        let kept = old.nbytes.min(nbytes) as usize;
        self.download(old, 0, &mut bytes[..kept])?;
        let size = value.base.dtype.size() as i64;
        let base = match nbytes as i64 % size {
            0 => Base::new(value.base.dtype, [nbytes as i64 / size].as_slice()),
            _ => Base::new(tpu_base::DType::U8, [nbytes as i64].as_slice()),
        };
        self.fill(&new, base, &bytes).map_err(Arc::new)?;
        Ok(new)
    }
}
