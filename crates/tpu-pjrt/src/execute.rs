//! Execution: the hot path.

use std::ptr::null_mut;

use smallvec::SmallVec;
use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::call;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::executable::LoadedExecutable;

/// Everything about an execution but its buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecArgs<'a> {
    /// Inputs that keep their contents although the program would take them over.
    pub non_donatable: &'a [i64],
    /// The device, for a program compiled as portable; otherwise its own assignment says it.
    pub device: Option<&'a Device>,
    /// Tells the processes of a multi-process execution that they mean the same one.
    pub launch_id: i32,
    /// Ask for an event that fires when the whole program is done. Outputs have their own.
    pub completion: bool,
}

/// Room for the handles of an ordinary plan without a heap allocation.
type Handles = SmallVec<[*mut sys::PJRT_Buffer; 24]>;

impl LoadedExecutable {
    /// Runs on one device and appends the results to `outputs`, usually before they are computed:
    /// each output carries its readiness. Inputs that the program takes over (donates) are deleted,
    /// unless their index is in `non_donatable`.
    #[inline]
    pub fn execute<'b>(
        &self,
        inputs: impl IntoIterator<Item = &'b Buffer>,
        non_donatable: &[i64],
        outputs: &mut Vec<Buffer>,
    ) -> Result<()> {
        let args = ExecArgs { non_donatable, ..ExecArgs::default() };
        self.execute_with(inputs, &args, outputs).map(drop)
    }

    /// As [`LoadedExecutable::execute`], with everything that can be said. The event is there if
    /// `args.completion` asked for it.
    pub fn execute_with<'b>(
        &self,
        inputs: impl IntoIterator<Item = &'b Buffer>,
        args: &ExecArgs<'_>,
        outputs: &mut Vec<Buffer>,
    ) -> Result<Option<Event>> {
        let mut handles = Handles::new();
        for input in inputs {
            self.check(input)?;
            handles.push(input.raw());
        }
        let mut results: Handles = SmallVec::from_elem(null_mut(), self.num_outputs());
        let mut complete = null_mut::<sys::PJRT_Event>();
        let events = if args.completion { &raw mut complete } else { null_mut() };
        self.launch(&[handles.as_ptr()], handles.len(), args, &[results.as_mut_ptr()], events)?;
        outputs.reserve(results.len());
        for raw in results {
            // SAFETY: the execution made this buffer for us.
            outputs.push(unsafe { Buffer::from_raw(self.client(), raw)? });
        }
        // SAFETY: the execution made this event for us, if we asked.
        Ok(unsafe { Event::from_raw(self.client(), complete) })
    }

    /// Runs on all addressable devices of the program: `inputs[d]` are those of device `d`, and
    /// `outputs` gets one list per device.
    pub fn execute_sharded(
        &self,
        inputs: &[&[&Buffer]],
        args: &ExecArgs<'_>,
        outputs: &mut Vec<Vec<Buffer>>,
    ) -> Result<()> {
        let count = inputs.first().map_or(0, |list| list.len());
        if inputs.iter().any(|list| list.len() != count) {
            return Err(Error::argument("every device needs as many inputs as the others"));
        }
        inputs.iter().copied().flatten().try_for_each(|input| self.check(input))?;
        let handles: Vec<Handles> =
            inputs.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        let mut results: Vec<Handles> =
            inputs.iter().map(|_| SmallVec::from_elem(null_mut(), self.num_outputs())).collect();
        let lists: Vec<_> = handles.iter().map(|list| list.as_ptr()).collect();
        let result_lists: Vec<_> = results.iter_mut().map(|list| list.as_mut_ptr()).collect();
        self.launch(&lists, count, args, &result_lists, null_mut())?;
        for list in results {
            // SAFETY: the execution made these buffers for us.
            let own = |raw| unsafe { Buffer::from_raw(self.client(), raw) };
            outputs.push(list.into_iter().map(own).collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// A handle of another plugin would be a wild pointer to this one.
    #[inline]
    fn check(&self, input: &Buffer) -> Result<()> {
        if input.client() != self.client() {
            return Err(Error::argument("an input belongs to another client"));
        }
        Ok(())
    }

    /// `inputs` and `results` hold one array per device; the callers in this file make them so.
    #[inline]
    fn launch(
        &self,
        inputs: &[*const *mut sys::PJRT_Buffer],
        num_inputs: usize,
        args: &ExecArgs<'_>,
        results: &[*mut *mut sys::PJRT_Buffer],
        events: *mut *mut sys::PJRT_Event,
    ) -> Result<()> {
        if args.device.is_some_and(|device| device.client() != self.client()) {
            return Err(Error::argument("the device belongs to another client"));
        }
        let mut options = sys::PJRT_ExecuteOptions::new();
        options.launch_id = args.launch_id;
        options.non_donatable_input_indices = args.non_donatable.as_ptr();
        options.num_non_donatable_input_indices = args.non_donatable.len();
        // SAFETY: live handles; every array has the length given beside it and outlives the call;
        // `results` has room for the program's outputs, `events` for one event or is null.
        unsafe {
            call!(
                self.client().api(),
                PJRT_LoadedExecutable_Execute {
                    executable: self.raw(),
                    options: &raw mut options,
                    argument_lists: inputs.as_ptr(),
                    num_devices: inputs.len(),
                    num_args: num_inputs,
                    output_lists: results.as_ptr(),
                    device_complete_events: events,
                    execute_device: args.device.map_or(null_mut(), Device::raw),
                }
            )?
        };
        Ok(())
    }
}
