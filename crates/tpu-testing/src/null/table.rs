//! The functions of the null plugin. Handles are boxes; every event has already happened.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tpu_pjrt::ElementType;
use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use super::program::{Program, Type};

struct Failure {
    code: sys::PJRT_Error_Code,
    message: String,
}

type Answer = Result<(), Failure>;

fn failure(code: sys::PJRT_Error_Code, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// Shared by everything that a client made.
#[derive(Default)]
struct State {
    bytes_limit: Option<usize>,
    bytes_in_use: AtomicUsize,
    fail_compile: bool,
    compile_ms: u64,
    fail_execute: bool,
    poison_outputs: bool,
}

struct Client {
    state: Arc<State>,
    devices: Vec<*mut sys::PJRT_Device>,
}

struct Device {
    id: c_int,
    state: Arc<State>,
}

struct Buffer {
    ty: Type,
    data: Vec<u8>,
    device: *mut sys::PJRT_Device,
    state: Arc<State>,
    deleted: AtomicBool,
    poisoned: bool,
}

struct Executable {
    program: Program,
    text: Vec<u8>,
    types: Vec<sys::PJRT_Buffer_Type>,
    ranks: Vec<usize>,
    dims: Vec<i64>,
    state: Arc<State>,
    device: *mut sys::PJRT_Device,
}

// SAFETY: immutable; the device lives as long as the client.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

struct Event {
    poisoned: bool,
}

impl Buffer {
    fn new(ty: Type, data: Vec<u8>, device: *mut sys::PJRT_Device, state: &Arc<State>) -> Result<Self, Failure> {
        let used = state.bytes_in_use.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        let this =
            Self { ty, data, device, state: Arc::clone(state), deleted: AtomicBool::new(false), poisoned: false };
        match state.bytes_limit {
            Some(limit) if used > limit => Err(failure(
                sys::PJRT_Error_Code_RESOURCE_EXHAUSTED,
                format!("{} bytes asked, {used} of {limit} would be in use", this.data.len()),
            )),
            _ => Ok(this),
        }
    }

    fn alive(&self) -> Answer {
        if self.deleted.load(Ordering::Relaxed) {
            return Err(failure(sys::PJRT_Error_Code_INVALID_ARGUMENT, "the buffer was deleted"));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.state.bytes_in_use.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

fn give<T, O>(value: T) -> *mut O {
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
/// `raw` came from `give::<T, O>` and is used no more.
unsafe fn take<T, O>(raw: *mut O) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(raw.cast::<T>()) });
}

/// # Safety
/// `raw` came from `give::<T, O>` and lives.
unsafe fn at<'a, T, O>(raw: *mut O) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*raw.cast::<T>() }
}

/// # Safety
/// `data` is null or valid for `len` items.
unsafe fn list<'a, T>(data: *const T, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if data.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } }
}

/// Refuses a struct from before this table, as real plugins do.
///
/// # Safety
/// `args` is valid.
unsafe fn answer<A: CStruct>(args: *mut A, body: impl FnOnce(&mut A) -> Answer) -> *mut sys::PJRT_Error {
    // SAFETY: the caller's promise.
    let args = unsafe { &mut *args };
    let result = if args.struct_size() < A::STRUCT_SIZE {
        Err(failure(sys::PJRT_Error_Code_INVALID_ARGUMENT, "the argument struct is too small"))
    } else {
        body(args)
    };
    result.map_or_else(give, |()| null_mut())
}

/// `functions! { table; Name(args) { … } }` sets the slots of `table`. Bodies dereference handles,
/// which are what the C API says they are.
macro_rules! functions {
    ($table:ident; $($name:ident($args:ident: $type:ident) $body:block)*) => { $(
        $table.$name = Some({
            unsafe extern "C" fn function(args: *mut sys::$type) -> *mut sys::PJRT_Error {
                #[allow(unused_unsafe, unused_variables, reason = "not every body needs them")]
                // SAFETY: the caller passes valid arguments and live handles of this plugin.
                unsafe { answer(args, |$args| { $body; Ok(()) }) }
            }
            function
        });
    )* };
}

unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    // SAFETY: an error of ours, owned by the caller.
    unsafe { take::<Failure, _>((*args).error) };
}

unsafe extern "C" fn error_message(args: *mut sys::PJRT_Error_Message_Args) {
    // SAFETY: a live error of ours.
    unsafe {
        let failure: &Failure = at((*args).error.cast_mut());
        (*args).message = failure.message.as_ptr().cast();
        (*args).message_size = failure.message.len();
    }
}

unsafe extern "C" fn nothing_to_delete(_: *mut sys::PJRT_SerializedExecutable) {}

const NAME: &str = "null";

fn name() -> (*const c_char, usize) {
    (NAME.as_ptr().cast(), NAME.len())
}

/// # Safety
/// `raw` is null or valid for `len` options.
unsafe fn state(raw: *const sys::PJRT_NamedValue, len: usize) -> (State, c_int) {
    let (mut state, mut devices) = (State::default(), 1);
    // SAFETY: the caller's promise; the union's member is the one its type names.
    unsafe {
        for option in list(raw, len) {
            let number = match option.type_ {
                sys::PJRT_NamedValue_kBool => i64::from(option.value.bool_value),
                sys::PJRT_NamedValue_kInt64 => option.value.int64_value,
                _ => continue,
            };
            match list(option.name.cast::<u8>(), option.name_size) {
                b"devices" => devices = number as c_int,
                b"fail_compile" => state.fail_compile = number != 0,
                b"compile_ms" => state.compile_ms = number as u64,
                b"bytes_limit" => state.bytes_limit = Some(number as usize),
                b"fail_execute" => state.fail_execute = number != 0,
                b"poison_outputs" => state.poison_outputs = number != 0,
                _ => {}
            }
        }
    }
    (state, devices)
}

fn load(client: &Client, text: &[u8]) -> Result<*mut sys::PJRT_LoadedExecutable, Failure> {
    let program = std::str::from_utf8(text)
        .ok()
        .and_then(Program::parse)
        .ok_or_else(|| failure(sys::PJRT_Error_Code_INVALID_ARGUMENT, "no @main with tensor types was found"))?;
    let outputs = &program.outputs;
    Ok(give(Arc::new(Executable {
        types: outputs.iter().map(|output| output.ty.element.to_raw()).collect(),
        ranks: outputs.iter().map(|output| output.ty.dims.len()).collect(),
        dims: outputs.iter().flat_map(|output| output.ty.dims.iter().copied()).collect(),
        text: text.to_vec(),
        state: Arc::clone(&client.state),
        device: client.devices[0],
        program,
    })))
}

/// # Safety
/// The arguments of an execution on one device.
unsafe fn execute(args: &mut sys::PJRT_LoadedExecutable_Execute_Args) -> Answer {
    // SAFETY: the caller's promise: arrays are as long as said, handles are live.
    unsafe {
        let exe: &Arc<Executable> = at(args.executable);
        if exe.state.fail_execute {
            return Err(failure(sys::PJRT_Error_Code_INTERNAL, "execution fails, as asked"));
        }
        if args.num_devices != 1 || args.num_args != exe.program.inputs.len() {
            let message = format!("{} inputs given, {} expected", args.num_args, exe.program.inputs.len());
            return Err(failure(sys::PJRT_Error_Code_INVALID_ARGUMENT, message));
        }
        let inputs = list(*args.argument_lists, args.num_args);
        let mut poisoned = exe.state.poison_outputs;
        for (&input, ty) in inputs.iter().zip(&exe.program.inputs) {
            let input: &Buffer = at(input);
            input.alive()?;
            poisoned |= input.poisoned;
            if input.ty != *ty {
                let message = format!("an input is {:?}, not {ty:?}", input.ty);
                return Err(failure(sys::PJRT_Error_Code_INVALID_ARGUMENT, message));
            }
        }
        let mut results = Vec::new();
        for output in &exe.program.outputs {
            let data = match output.input {
                Some(index) => at::<Buffer, _>(inputs[index]).data.clone(),
                None => vec![0; output.ty.bytes()],
            };
            let mut buffer = Buffer::new(output.ty.clone(), data, exe.device, &exe.state)?;
            buffer.poisoned = poisoned;
            results.push(buffer);
        }
        for (index, buffer) in results.into_iter().enumerate() {
            *(*args.output_lists).add(index) = give(buffer);
        }
        if !args.device_complete_events.is_null() {
            *args.device_complete_events = give(Event { poisoned });
        }
    }
    Ok(())
}

fn event_answer(event: &Event) -> Answer {
    if event.poisoned {
        return Err(failure(sys::PJRT_Error_Code_INTERNAL, "the output is poisoned, as asked"));
    }
    Ok(())
}

/// A complete table.
pub(super) fn api() -> sys::PJRT_Api {
    let mut api = sys::PJRT_Api::new();
    api.pjrt_api_version = sys::PJRT_Api_Version::new();
    api.pjrt_api_version.major_version = sys::PJRT_API_MAJOR;
    api.pjrt_api_version.minor_version = sys::PJRT_API_MINOR;
    api.PJRT_Error_Destroy = Some(error_destroy);
    api.PJRT_Error_Message = Some(error_message);
    clients(&mut api);
    buffers(&mut api);
    executables(&mut api);
    api
}

fn clients(api: &mut sys::PJRT_Api) {
    functions! { api;
        PJRT_Error_GetCode(a: PJRT_Error_GetCode_Args) { a.code = at::<Failure, _>(a.error.cast_mut()).code }
        PJRT_Plugin_Initialize(a: PJRT_Plugin_Initialize_Args) {}
        PJRT_Plugin_Attributes(a: PJRT_Plugin_Attributes_Args) { a.num_attributes = 0 }
        PJRT_Event_Destroy(a: PJRT_Event_Destroy_Args) { take::<Event, _>(a.event) }
        PJRT_Event_IsReady(a: PJRT_Event_IsReady_Args) { a.is_ready = true }
        PJRT_Event_Await(a: PJRT_Event_Await_Args) { event_answer(at(a.event))? }
        PJRT_Event_Error(a: PJRT_Event_Error_Args) { event_answer(at(a.event))? }
        PJRT_Event_OnReady(a: PJRT_Event_OnReady_Args) {
            let error = event_answer(at(a.event)).map_or_else(give, |()| null_mut());
            if let Some(callback) = a.callback { callback(error, a.user_arg) }
        }
        PJRT_Client_Create(a: PJRT_Client_Create_Args) {
            let (state, devices) = state(a.create_options, a.num_options);
            let state = Arc::new(state);
            let devices =
                (0..devices.max(1)).map(|id| give(Device { id, state: Arc::clone(&state) })).collect();
            a.client = give(Client { state, devices });
        }
        PJRT_Client_Destroy(a: PJRT_Client_Destroy_Args) {
            for &device in &at::<Client, _>(a.client).devices { take::<Device, _>(device) }
            take::<Client, _>(a.client)
        }
        PJRT_Client_PlatformName(a: PJRT_Client_PlatformName_Args) {
            (a.platform_name, a.platform_name_size) = name()
        }
        PJRT_Client_PlatformVersion(a: PJRT_Client_PlatformVersion_Args) {
            (a.platform_version, a.platform_version_size) = name()
        }
        PJRT_Client_ProcessIndex(a: PJRT_Client_ProcessIndex_Args) { a.process_index = 0 }
        PJRT_Client_Devices(a: PJRT_Client_Devices_Args) {
            let devices = &at::<Client, _>(a.client).devices;
            (a.devices, a.num_devices) = (devices.as_ptr(), devices.len())
        }
        PJRT_Client_AddressableDevices(a: PJRT_Client_AddressableDevices_Args) {
            let devices = &at::<Client, _>(a.client).devices;
            (a.addressable_devices, a.num_addressable_devices) = (devices.as_ptr(), devices.len())
        }
        PJRT_Client_DefaultDeviceAssignment(a: PJRT_Client_DefaultDeviceAssignment_Args) {
            for index in 0..a.default_assignment_size { *a.default_assignment.add(index) = index as c_int }
        }
        PJRT_Device_GetDescription(a: PJRT_Device_GetDescription_Args) { a.device_description = a.device.cast() }
        PJRT_Device_IsAddressable(a: PJRT_Device_IsAddressable_Args) { a.is_addressable = true }
        PJRT_Device_LocalHardwareId(a: PJRT_Device_LocalHardwareId_Args) {
            a.local_hardware_id = at::<Device, _>(a.device).id
        }
        PJRT_Device_MemoryStats(a: PJRT_Device_MemoryStats_Args) {
            let state = &at::<Device, _>(a.device).state;
            a.bytes_in_use = state.bytes_in_use.load(Ordering::Relaxed) as i64;
            a.bytes_limit_is_set = state.bytes_limit.is_some();
            a.bytes_limit = state.bytes_limit.unwrap_or(0) as i64;
        }
        PJRT_DeviceDescription_Id(a: PJRT_DeviceDescription_Id_Args) {
            a.id = at::<Device, _>(a.device_description).id
        }
        PJRT_DeviceDescription_ProcessIndex(a: PJRT_DeviceDescription_ProcessIndex_Args) { a.process_index = 0 }
        PJRT_DeviceDescription_Attributes(a: PJRT_DeviceDescription_Attributes_Args) { a.num_attributes = 0 }
        PJRT_DeviceDescription_Kind(a: PJRT_DeviceDescription_Kind_Args) {
            (a.device_kind, a.device_kind_size) = name()
        }
        PJRT_DeviceDescription_DebugString(a: PJRT_DeviceDescription_DebugString_Args) {
            (a.debug_string, a.debug_string_size) = name()
        }
        PJRT_DeviceDescription_ToString(a: PJRT_DeviceDescription_ToString_Args) {
            (a.to_string, a.to_string_size) = name()
        }
    }
}

fn buffers(api: &mut sys::PJRT_Api) {
    functions! { api;
        PJRT_Client_BufferFromHostBuffer(a: PJRT_Client_BufferFromHostBuffer_Args) {
            let refuse = |what: &str| failure(sys::PJRT_Error_Code_UNIMPLEMENTED, what);
            let element = ElementType::from_raw(a.type_).ok_or_else(|| refuse("unknown element type"))?;
            let ty = Type { element, dims: list(a.dims, a.num_dims).to_vec() };
            if a.num_byte_strides != 0 {
                return Err(refuse("strides"));
            }
            let data = list(a.data.cast::<u8>(), ty.bytes()).to_vec();
            let buffer = Buffer::new(ty, data, a.device, &at::<Client, _>(a.client).state)?;
            a.buffer = give(buffer);
            a.done_with_host_buffer = give(Event { poisoned: false });
        }
        PJRT_Buffer_Destroy(a: PJRT_Buffer_Destroy_Args) { take::<Buffer, _>(a.buffer) }
        PJRT_Buffer_ElementType(a: PJRT_Buffer_ElementType_Args) {
            a.type_ = at::<Buffer, _>(a.buffer).ty.element.to_raw()
        }
        PJRT_Buffer_Dimensions(a: PJRT_Buffer_Dimensions_Args) {
            let dims = &at::<Buffer, _>(a.buffer).ty.dims;
            (a.dims, a.num_dims) = (dims.as_ptr(), dims.len())
        }
        PJRT_Buffer_OnDeviceSizeInBytes(a: PJRT_Buffer_OnDeviceSizeInBytes_Args) {
            a.on_device_size_in_bytes = at::<Buffer, _>(a.buffer).data.len()
        }
        PJRT_Buffer_Device(a: PJRT_Buffer_Device_Args) { a.device = at::<Buffer, _>(a.buffer).device }
        PJRT_Buffer_Delete(a: PJRT_Buffer_Delete_Args) {
            at::<Buffer, _>(a.buffer).deleted.store(true, Ordering::Relaxed)
        }
        PJRT_Buffer_IsDeleted(a: PJRT_Buffer_IsDeleted_Args) {
            a.is_deleted = at::<Buffer, _>(a.buffer).deleted.load(Ordering::Relaxed)
        }
        PJRT_Buffer_IsOnCpu(a: PJRT_Buffer_IsOnCpu_Args) { a.is_on_cpu = true }
        PJRT_Buffer_ReadyEvent(a: PJRT_Buffer_ReadyEvent_Args) {
            let buffer: &Buffer = at(a.buffer);
            buffer.alive()?;
            a.event = give(Event { poisoned: buffer.poisoned })
        }
        PJRT_Buffer_UnsafePointer(a: PJRT_Buffer_UnsafePointer_Args) {
            a.buffer_pointer = at::<Buffer, _>(a.buffer).data.as_ptr() as usize
        }
        PJRT_Buffer_ToHostBuffer(a: PJRT_Buffer_ToHostBuffer_Args) {
            let buffer: &Buffer = at(a.src);
            buffer.alive()?;
            copy(buffer, 0, buffer.data.len(), a.dst, a.dst_size)?;
            a.event = give(Event { poisoned: buffer.poisoned })
        }
        PJRT_Buffer_CopyRawToHost(a: PJRT_Buffer_CopyRawToHost_Args) {
            let buffer: &Buffer = at(a.buffer);
            buffer.alive()?;
            copy(buffer, a.offset as usize, a.transfer_size as usize, a.dst, a.transfer_size as usize)?;
            a.event = give(Event { poisoned: buffer.poisoned })
        }
    }
}

/// # Safety
/// `dst` is valid for `room` bytes.
unsafe fn copy(buffer: &Buffer, offset: usize, len: usize, dst: *mut c_void, room: usize) -> Answer {
    let from = buffer.data.get(offset..offset.saturating_add(len)).filter(|from| from.len() <= room);
    let from = from.ok_or_else(|| failure(sys::PJRT_Error_Code_OUT_OF_RANGE, "no such bytes"))?;
    // SAFETY: both sides have the room.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dst.cast(), from.len()) };
    Ok(())
}

fn executables(api: &mut sys::PJRT_Api) {
    functions! { api;
        PJRT_Client_Compile(a: PJRT_Client_Compile_Args) {
            let client: &Client = at(a.client);
            std::thread::sleep(Duration::from_millis(client.state.compile_ms));
            if client.state.fail_compile {
                return Err(failure(sys::PJRT_Error_Code_INTERNAL, "compiling fails, as asked"));
            }
            let program = &*a.program;
            a.executable = load(client, list(program.code.cast::<u8>(), program.code_size))?
        }
        PJRT_Executable_DeserializeAndLoad(a: PJRT_Executable_DeserializeAndLoad_Args) {
            let text = list(a.serialized_executable.cast::<u8>(), a.serialized_executable_size);
            a.loaded_executable = load(at(a.client), text)?
        }
        PJRT_LoadedExecutable_GetExecutable(a: PJRT_LoadedExecutable_GetExecutable_Args) {
            a.executable = give(Arc::clone(at::<Arc<Executable>, _>(a.loaded_executable)))
        }
        PJRT_LoadedExecutable_Destroy(a: PJRT_LoadedExecutable_Destroy_Args) {
            take::<Arc<Executable>, _>(a.executable)
        }
        PJRT_Executable_Destroy(a: PJRT_Executable_Destroy_Args) { take::<Arc<Executable>, _>(a.executable) }
        PJRT_LoadedExecutable_AddressableDevices(a: PJRT_LoadedExecutable_AddressableDevices_Args) {
            let exe: &Arc<Executable> = at(a.executable);
            (a.addressable_devices, a.num_addressable_devices) = (&raw const exe.device, 1)
        }
        PJRT_LoadedExecutable_Execute(a: PJRT_LoadedExecutable_Execute_Args) { execute(a)? }
        PJRT_Executable_Name(a: PJRT_Executable_Name_Args) {
            (a.executable_name, a.executable_name_size) = name()
        }
        PJRT_Executable_NumOutputs(a: PJRT_Executable_NumOutputs_Args) {
            a.num_outputs = at::<Arc<Executable>, _>(a.executable).program.outputs.len()
        }
        PJRT_Executable_OutputElementTypes(a: PJRT_Executable_OutputElementTypes_Args) {
            let exe: &Arc<Executable> = at(a.executable);
            (a.output_types, a.num_output_types) = (exe.types.as_ptr().cast_mut(), exe.types.len())
        }
        PJRT_Executable_OutputDimensions(a: PJRT_Executable_OutputDimensions_Args) {
            let exe: &Arc<Executable> = at(a.executable);
            a.num_outputs = exe.ranks.len();
            (a.dims, a.dim_sizes) = (exe.dims.as_ptr(), exe.ranks.as_ptr())
        }
        PJRT_Executable_Serialize(a: PJRT_Executable_Serialize_Args) {
            let exe: &Arc<Executable> = at(a.executable.cast_mut());
            a.serialized_bytes = exe.text.as_ptr().cast();
            a.serialized_bytes_size = exe.text.len();
            a.serialized_executable_deleter = Some(nothing_to_delete);
        }
    }
}
