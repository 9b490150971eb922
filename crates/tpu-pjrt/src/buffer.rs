//! Buffers: arrays on a device.

use std::fmt;
use std::ptr::{NonNull, null};

use smallvec::SmallVec;
use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::{call, items};
use crate::client::Client;
use crate::device::{Device, Memory};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::host::HostMemory;

/// An array on a device. It may still be in the making: reads and executions wait for it.
/// Dropping it gives the memory back once the device no longer needs it.
pub struct Buffer {
    client: Client,
    raw: NonNull<sys::PJRT_Buffer>,
}

// SAFETY: PJRT buffers are thread-safe.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// How long host memory given to [`Client::buffer_from_host_unsafe`] must stay valid and unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSemantics {
    /// During the call.
    DuringCall,
    /// Until the event fires.
    UntilTransferCompletes,
    /// Until the event fires, which may be as late as the buffer's end: the plugin may use the memory
    /// in place (CPU plugins do so for suitably aligned memory).
    ZeroCopy,
    /// As `ZeroCopy`, and the device may write to it (donation).
    MutableZeroCopy,
}

impl Client {
    /// Brings a dense row-major array to `device`, giving the memory away: a plugin on the host's own memory uses it in
    /// place, others copy from it and it is freed.
    pub fn buffer_adopting(
        &self,
        memory: HostMemory,
        element_type: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        if element_type.host_bytes(dims) != Some(memory.len()) {
            return Err(Error::argument(format!("{} bytes given for {element_type:?} {dims:?}", memory.len())));
        }
        // SAFETY: the memory is ours, and stays until the event says that nobody needs it.
        let (buffer, done) = unsafe {
            self.buffer_from_host_unsafe(
                memory.as_ptr(),
                element_type,
                dims,
                None,
                HostSemantics::MutableZeroCopy,
                device,
            )?
        };
        if let Some(done) = done {
            done.on_ready(move |_| memory.give_back())?;
        }
        Ok(buffer)
    }

    /// Copies a dense row-major array to `device`.
    pub fn buffer_from_host(
        &self,
        data: &[u8],
        element_type: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        if element_type.host_bytes(dims) != Some(data.len()) {
            return Err(Error::argument(format!("{} bytes are not an array of {element_type:?} {dims:?}", data.len())));
        }
        // SAFETY: `data` is valid for the call, and its size fits the shape.
        let (buffer, _done) = unsafe {
            self.buffer_from_host_unsafe(data.as_ptr(), element_type, dims, None, HostSemantics::DuringCall, device)?
        };
        Ok(buffer)
    }

    /// Brings an array to `device`, reading host memory as late as `semantics` allows. The event says
    /// when the host memory is no longer needed.
    ///
    /// # Safety
    /// `data` is valid for the shape (with `byte_strides`, or dense row-major without) and unchanged
    /// for as long as `semantics` says.
    pub unsafe fn buffer_from_host_unsafe(
        &self,
        data: *const u8,
        element_type: ElementType,
        dims: &[i64],
        byte_strides: Option<&[i64]>,
        semantics: HostSemantics,
        device: &Device,
    ) -> Result<(Buffer, Option<Event>)> {
        if byte_strides.is_some_and(|strides| strides.len() != dims.len()) {
            return Err(Error::argument("as many strides as dimensions are needed"));
        }
        self.check(device.client())?;
        // SAFETY: live handles; the arrays outlive the call; `data` is the caller's promise.
        unsafe {
            let args = call!(
                self.api(),
                PJRT_Client_BufferFromHostBuffer {
                    client: self.raw(),
                    data: data.cast(),
                    type_: element_type.to_raw(),
                    dims: dims.as_ptr(),
                    num_dims: dims.len(),
                    byte_strides: byte_strides.map_or(null(), <[i64]>::as_ptr),
                    num_byte_strides: byte_strides.map_or(0, <[i64]>::len),
                    host_buffer_semantics: semantics.to_raw(),
                    device: device.raw(),
                }
            )?;
            let done = Event::from_raw(self, args.done_with_host_buffer);
            Ok((Buffer::from_raw(self, args.buffer)?, done))
        }
    }

    /// Memory on `device` with arbitrary contents; `Unsupported` where the plugin cannot.
    pub fn uninitialized_buffer(&self, element_type: ElementType, dims: &[i64], device: &Device) -> Result<Buffer> {
        self.check(device.client())?;
        // SAFETY: live handles; the array outlives the call; we own the result.
        unsafe {
            let args = call!(
                self.api(),
                PJRT_Client_CreateUninitializedBuffer {
                    client: self.raw(),
                    shape_dims: dims.as_ptr(),
                    shape_num_dims: dims.len(),
                    shape_element_type: element_type.to_raw(),
                    device: device.raw(),
                }
            )?;
            Buffer::from_raw(self, args.buffer)
        }
    }
}

impl Buffer {
    /// Takes ownership.
    ///
    /// # Safety
    /// `raw` is null or a live buffer of `client` that nobody else owns.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_Buffer) -> Result<Self> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { client: client.clone(), raw }),
            None => Err(Error::argument("the plugin made no buffer and gave no reason")),
        }
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.raw.as_ptr()
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The element type; `None` for one that this version does not know.
    pub fn element_type(&self) -> Result<Option<ElementType>> {
        // SAFETY: a live buffer.
        let args = unsafe { call!(self.client.api(), PJRT_Buffer_ElementType { buffer: self.raw() })? };
        Ok(ElementType::from_raw(args.type_))
    }

    /// The dimensions.
    pub fn dims(&self) -> Result<&[i64]> {
        // SAFETY: a live buffer; the array lives as long as it does.
        unsafe {
            let args = call!(self.client.api(), PJRT_Buffer_Dimensions { buffer: self.raw() })?;
            Ok(items(args.dims, args.num_dims))
        }
    }

    /// Bytes on the device, padding included.
    pub fn device_size(&self) -> Result<usize> {
        // SAFETY: a live buffer.
        let args = unsafe { call!(self.client.api(), PJRT_Buffer_OnDeviceSizeInBytes { buffer: self.raw() })? };
        Ok(args.on_device_size_in_bytes)
    }

    /// The device it lies on.
    pub fn device(&self) -> Result<Option<Device>> {
        // SAFETY: a live buffer; the device lives as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_Buffer_Device { buffer: self.raw() })?;
            Ok(Device::from_raw(&self.client, args.device))
        }
    }

    /// The memory it lies in.
    pub fn memory(&self) -> Result<Option<Memory>> {
        // SAFETY: a live buffer; the memory lives as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_Buffer_Memory { buffer: self.raw() })?;
            Ok(Memory::from_raw(&self.client, args.memory))
        }
    }

    /// Fires when the contents are there, or fails as what made them failed.
    pub fn ready_event(&self) -> Result<Event> {
        // SAFETY: a live buffer; we own the event.
        unsafe {
            let args = call!(self.client.api(), PJRT_Buffer_ReadyEvent { buffer: self.raw() })?;
            Event::from_raw(&self.client, args.event)
                .ok_or_else(|| Error::argument("the plugin gave no readiness event"))
        }
    }

    /// Whether the contents are there (or never will be).
    pub fn is_ready(&self) -> Result<bool> {
        self.ready_event()?.is_ready()
    }

    /// Blocks until the contents are there.
    pub fn wait(&self) -> Result<()> {
        self.ready_event()?.wait()
    }

    /// Gives the device memory back now; every later use fails.
    pub fn delete(&self) -> Result<()> {
        // SAFETY: a live buffer.
        unsafe { call!(self.client.api(), PJRT_Buffer_Delete { buffer: self.raw() })? };
        Ok(())
    }

    /// Whether it was deleted or donated.
    pub fn is_deleted(&self) -> Result<bool> {
        // SAFETY: a live buffer.
        let args = unsafe { call!(self.client.api(), PJRT_Buffer_IsDeleted { buffer: self.raw() })? };
        Ok(args.is_deleted)
    }

    /// Whether its memory can be read by the host.
    pub fn is_on_cpu(&self) -> Result<bool> {
        // SAFETY: a live buffer.
        let args = unsafe { call!(self.client.api(), PJRT_Buffer_IsOnCpu { buffer: self.raw() })? };
        Ok(args.is_on_cpu)
    }

    /// Where the contents lie. The address means something only while the buffer lives and is
    /// neither deleted nor donated, and the contents only once it is ready.
    pub fn unsafe_pointer(&self) -> Result<usize> {
        // SAFETY: a live buffer; a number is safe to have.
        let args = unsafe { call!(self.client.api(), PJRT_Buffer_UnsafePointer { buffer: self.raw() })? };
        Ok(args.buffer_pointer)
    }

    /// Copies the contents, dense and row-major, and blocks until they are there.
    pub fn to_host(&self, dst: &mut [u8]) -> Result<()> {
        let needed = self
            .element_type()?
            .and_then(|element| element.host_bytes(self.dims().ok()?))
            .ok_or_else(|| Error::argument("the size of the buffer is unknown"))?;
        if dst.len() != needed {
            return Err(Error::argument(format!("{} bytes given, {needed} needed", dst.len())));
        }
        if self.is_small_on_host(needed) && self.read_in_place(dst)? {
            return Ok(());
        }
        // SAFETY: `dst` has the size and outlives the transfer, since we wait here.
        match unsafe { self.to_host_unsafe(dst.as_mut_ptr(), dst.len())? } {
            Some(event) => event.wait(),
            None => Ok(()),
        }
    }

    /// A CPU plugin hands every transfer to another thread, which costs tens of microseconds where the
    /// copy itself takes less than one; docs/decisions/compile-options.md has numbers.
    fn is_small_on_host(&self, bytes: usize) -> bool {
        const SMALL: usize = 4 << 20;
        bytes <= SMALL && self.client.platform_name() == "cpu" && self.is_on_cpu().unwrap_or(false)
    }

    /// Copies straight from the buffer's memory; `false` if it lies there in another order or the
    /// plugin cannot lend it.
    fn read_in_place(&self, dst: &mut [u8]) -> Result<bool> {
        let api = self.client.api();
        if !self.is_row_major() {
            return Ok(false);
        }
        // SAFETY: a live buffer. The reference keeps another thread from donating or deleting the
        // memory while we read it, and is given back below.
        if unsafe { call!(api, PJRT_Buffer_IncreaseExternalReferenceCount { buffer: self.raw() }).is_err() } {
            return Ok(false);
        }
        let read = self.wait().and_then(|()| {
            let source = self.unsafe_pointer()?;
            if dst.is_empty() {
                return Ok(true);
            }
            // SAFETY: ready, held, dense, row-major and at least as large as `dst`.
            unsafe {
                std::ptr::copy_nonoverlapping(source as *const u8, dst.as_mut_ptr(), dst.len());
            }
            Ok(true)
        });
        // SAFETY: gives back the reference from above.
        unsafe { call!(api, PJRT_Buffer_DecreaseExternalReferenceCount { buffer: self.raw() })? };
        read
    }

    fn is_row_major(&self) -> bool {
        // SAFETY: a live buffer; the layout's arrays live as long as it does.
        unsafe {
            let Ok(args) = call!(self.client.api(), PJRT_Buffer_GetMemoryLayout { buffer: self.raw() }) else {
                return false;
            };
            if args.layout.type_ != sys::PJRT_Buffer_MemoryLayout_Type_Tiled {
                return false;
            }
            let tiled = args.layout.value.tiled;
            let order = items(tiled.minor_to_major, tiled.minor_to_major_size);
            tiled.num_tiles == 0 && order.iter().rev().enumerate().all(|(axis, &minor)| axis as i64 == minor)
        }
    }

    /// Starts copying the contents, dense and row-major.
    ///
    /// # Safety
    /// `dst` is valid for writes of `len` bytes and otherwise untouched until the event fires
    /// (without an event it is done).
    pub unsafe fn to_host_unsafe(&self, dst: *mut u8, len: usize) -> Result<Option<Event>> {
        // Row-major must be said: by default a plugin keeps the device's own dimension order.
        let rank = self.dims()?.len() as i64;
        let minor_to_major: SmallVec<[i64; 8]> = (0..rank).rev().collect();
        let mut layout = sys::PJRT_Buffer_MemoryLayout::new();
        layout.type_ = sys::PJRT_Buffer_MemoryLayout_Type_Tiled;
        layout.value.tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..CStruct::new()
        };
        // SAFETY: a live buffer, a layout that outlives the call, and the caller's promise on `dst`.
        unsafe {
            let args = call!(
                self.client.api(),
                PJRT_Buffer_ToHostBuffer {
                    src: self.raw(),
                    host_layout: &raw mut layout,
                    dst: dst.cast(),
                    dst_size: len,
                }
            )?;
            Ok(Event::from_raw(&self.client, args.event))
        }
    }

    /// Starts copying `len` bytes of the contents as they lie on the device, from `offset` on;
    /// `Unsupported` where the plugin cannot.
    ///
    /// # Safety
    /// As for [`Buffer::to_host_unsafe`].
    pub unsafe fn copy_raw_to_host_unsafe(&self, dst: *mut u8, offset: usize, len: usize) -> Result<Option<Event>> {
        // SAFETY: a live buffer, and the caller's promise on `dst`.
        unsafe {
            let args = call!(
                self.client.api(),
                PJRT_Buffer_CopyRawToHost {
                    buffer: self.raw(),
                    dst: dst.cast(),
                    offset: offset as i64,
                    transfer_size: len as i64,
                }
            )?;
            Ok(Event::from_raw(&self.client, args.event))
        }
    }

    /// Copies `dst.len()` bytes as they lie on the device, from `offset` on, and blocks until they
    /// are there.
    pub fn copy_raw_to_host(&self, dst: &mut [u8], offset: usize) -> Result<()> {
        let size = self.device_size()?;
        if offset.checked_add(dst.len()).is_none_or(|end| end > size) {
            return Err(Error::argument(format!("the range reaches beyond the buffer's {size} bytes")));
        }
        // SAFETY: `dst` outlives the transfer, since we wait here.
        match unsafe { self.copy_raw_to_host_unsafe(dst.as_mut_ptr(), offset, dst.len())? } {
            Some(event) => event.wait(),
            None => Ok(()),
        }
    }

    /// Copies to another device of the client.
    pub fn copy_to_device(&self, device: &Device) -> Result<Self> {
        self.client.check(device.client())?;
        // SAFETY: live handles; we own the result.
        unsafe {
            let args =
                call!(self.client.api(), PJRT_Buffer_CopyToDevice { buffer: self.raw(), dst_device: device.raw() })?;
            Self::from_raw(device.client(), args.dst_buffer)
        }
    }

    /// Copies to another memory, for instance pinned host memory.
    pub fn copy_to_memory(&self, memory: &Memory) -> Result<Self> {
        self.client.check(memory.client())?;
        // SAFETY: live handles; we own the result.
        unsafe {
            let args =
                call!(self.client.api(), PJRT_Buffer_CopyToMemory { buffer: self.raw(), dst_memory: memory.raw() })?;
            Self::from_raw(&self.client, args.dst_buffer)
        }
    }
}

impl HostSemantics {
    fn to_raw(self) -> sys::PJRT_HostBufferSemantics {
        match self {
            Self::DuringCall => sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            Self::UntilTransferCompletes => sys::PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
            Self::ZeroCopy => sys::PJRT_HostBufferSemantics_kImmutableZeroCopy,
            Self::MutableZeroCopy => sys::PJRT_HostBufferSemantics_kMutableZeroCopy,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: ours, used no more. Nothing can be done about a failure here.
        let _ = unsafe { call!(self.client.api(), PJRT_Buffer_Destroy { buffer: self.raw() }) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = self.element_type().ok().flatten();
        write!(f, "Buffer({element:?} {:?})", self.dims().unwrap_or_default())
    }
}
