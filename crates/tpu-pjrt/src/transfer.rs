//! Host-to-device transfers in pieces, into buffers that exist before their data does.

use std::ptr::NonNull;

use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::call;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::device::Memory;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::event::Event;

/// Buffers in the making. Executions may use the buffers at once; they wait for the last piece.
pub struct AsyncTransfer {
    client: Client,
    raw: NonNull<sys::PJRT_AsyncHostToDeviceTransferManager>,
    sizes: Vec<usize>,
}

// SAFETY: PJRT transfer managers are thread-safe.
unsafe impl Send for AsyncTransfer {}
// SAFETY: as above.
unsafe impl Sync for AsyncTransfer {}

impl Client {
    /// Allocates buffers in `memory`, to be filled piece by piece.
    pub fn async_transfer(&self, shapes: &[(ElementType, &[i64])], memory: &Memory) -> Result<AsyncTransfer> {
        self.check(memory.client())?;
        let mut specs: Vec<_> = shapes
            .iter()
            .map(|(element, dims)| sys::PJRT_ShapeSpec {
                dims: dims.as_ptr(),
                num_dims: dims.len(),
                element_type: element.to_raw(),
                ..CStruct::new()
            })
            .collect();
        // SAFETY: live handles; the shapes outlive the call; we own the result.
        let args = unsafe {
            call!(
                self.api(),
                PJRT_Client_CreateBuffersForAsyncHostToDevice {
                    client: self.raw(),
                    shape_specs: specs.as_mut_ptr(),
                    num_shape_specs: specs.len(),
                    memory: memory.raw(),
                }
            )?
        };
        let raw = NonNull::new(args.transfer_manager)
            .ok_or_else(|| Error::argument("the plugin made no transfer and gave no reason"))?;
        let mut this = AsyncTransfer { client: self.clone(), raw, sizes: Vec::new() };
        for index in 0..shapes.len() {
            this.sizes.push(this.size(index)?);
        }
        Ok(this)
    }
}

impl AsyncTransfer {
    fn raw(&self) -> *mut sys::PJRT_AsyncHostToDeviceTransferManager {
        self.raw.as_ptr()
    }

    fn size(&self, index: usize) -> Result<usize> {
        // SAFETY: a live manager.
        let args = unsafe {
            call!(
                self.client.api(),
                PJRT_AsyncHostToDeviceTransferManager_BufferSize {
                    transfer_manager: self.raw(),
                    buffer_index: index as i32,
                }
            )?
        };
        Ok(args.buffer_size)
    }

    /// Bytes of each buffer.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The buffer at `index`, usable before its data is there. Each can be taken once.
    pub fn take(&self, index: usize) -> Result<Buffer> {
        self.check(index, 0, 0)?;
        // SAFETY: a live manager and a valid index; we own the result.
        unsafe {
            let args = call!(
                self.client.api(),
                PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer {
                    transfer_manager: self.raw(),
                    buffer_index: index as i32,
                }
            )?;
            Buffer::from_raw(&self.client, args.buffer_out)
        }
    }

    /// Sends a piece and blocks until the host memory is free again.
    pub fn send(&self, index: usize, offset: usize, data: &[u8], last: bool) -> Result<()> {
        // SAFETY: we wait until `data` is no longer read.
        match unsafe { self.send_unsafe(index, offset, data.as_ptr(), data.len(), last)? } {
            Some(event) => event.wait(),
            None => Ok(()),
        }
    }

    /// Sends a piece. With `last` the buffer becomes ready once all its pieces are there.
    ///
    /// # Safety
    /// `data` is valid for `len` bytes and unchanged until the event fires.
    pub unsafe fn send_unsafe(
        &self,
        index: usize,
        offset: usize,
        data: *const u8,
        len: usize,
        last: bool,
    ) -> Result<Option<Event>> {
        self.check(index, offset, len)?;
        // SAFETY: a live manager, a range inside the buffer, and the caller's promise on `data`.
        unsafe {
            let args = call!(
                self.client.api(),
                PJRT_AsyncHostToDeviceTransferManager_TransferData {
                    transfer_manager: self.raw(),
                    buffer_index: index as i32,
                    data: data.cast(),
                    offset: offset as i64,
                    transfer_size: len as i64,
                    is_last_transfer: last,
                }
            )?;
            Ok(Event::from_raw(&self.client, args.done_with_h2d_transfer))
        }
    }

    fn check(&self, index: usize, offset: usize, len: usize) -> Result<()> {
        let size = self.sizes.get(index).copied();
        match (size, offset.checked_add(len)) {
            (Some(size), Some(end)) if end <= size => Ok(()),
            _ => Err(Error::argument(format!("no bytes {offset}+{len} in buffer {index} of {size:?} bytes"))),
        }
    }
}

impl Drop for AsyncTransfer {
    fn drop(&mut self) {
        // SAFETY: ours, used no more. Nothing can be done about a failure here.
        let _ = unsafe {
            call!(self.client.api(), PJRT_AsyncHostToDeviceTransferManager_Destroy { transfer_manager: self.raw() })
        };
    }
}

impl std::fmt::Debug for AsyncTransfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncTransfer").field("sizes", &self.sizes).finish()
    }
}
