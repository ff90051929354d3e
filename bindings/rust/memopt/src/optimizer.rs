use crate::allocator::{Allocator, Block};
use crate::device::Stream;
use crate::error::{check, c_string, Error, Result};
use crate::sys;
use std::path::Path;
use std::ptr;

/// An optimizer with states of 32, 16, 8 or 4 bits. One thread at a time, any thread.
pub struct Optimizer<'a> {
    allocator: &'a Allocator<'a>,
    handle: *mut sys::memopt_optimizer,
    parameters: Vec<&'a Block<'a>>,
}

unsafe impl Send for Optimizer<'_> {}

impl<'a> Optimizer<'a> {
    pub fn new(allocator: &'a Allocator<'a>, options: &sys::memopt_optimizer_options) -> Result<Optimizer<'a>> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::memopt_optimizer_create(allocator.handle, options, &mut handle) })?;
        Ok(Optimizer { allocator, handle, parameters: Vec::new() })
    }

    /// Returns the group's number.
    pub fn add_group(&mut self, group: &sys::memopt_optimizer_group) -> Result<u32> {
        if !group.device_lr.is_null() {
            return Err(Error::invalid("group: device_lr is for calls of `sys`".to_string()));
        }
        let mut number = 0;
        check(unsafe { sys::memopt_optimizer_add_group(self.handle, group, &mut number) })?;
        Ok(number)
    }

    /// Changes a group's values, such as `lr`.
    pub fn set_group(&mut self, number: u32, group: &sys::memopt_optimizer_group) -> Result<()> {
        if !group.device_lr.is_null() {
            return Err(Error::invalid("group: device_lr is for calls of `sys`".to_string()));
        }
        check(unsafe { sys::memopt_optimizer_set_group(self.handle, number, group) })
    }

    /// A whole block of f32. Returns the parameter's number.
    pub fn add_parameter(&mut self, group: u32, weights: &'a Block<'a>, stream: &Stream<'_>) -> Result<u64> {
        let handle = stream.on(self.allocator.device)?;
        let tensor = weights.tensor(weights.bytes / 4, sys::MEMOPT_DTYPE_F32)?;
        let mut index = 0;
        weights.record_stream(stream)?;
        check(unsafe {
            sys::memopt_optimizer_add_parameter(self.handle, group, &tensor, ptr::null(), handle, &mut index)
        })?;
        self.parameters.push(weights);
        Ok(index)
    }

    /// A step of all parameters, with one block of f32 gradients each, in their order. The pointers in
    /// `options` are for calls of `sys`.
    pub fn step(&mut self, gradients: &[&Block<'_>], options: &sys::memopt_step_options, stream: &Stream<'_>) -> Result<()> {
        let handle = stream.on(self.allocator.device)?;
        let plain = sys::memopt_step_options {
            max_norm: options.max_norm,
            skip_non_finite: options.skip_non_finite,
            ..Default::default()
        };
        if gradients.len() != self.parameters.len() {
            return Err(Error::invalid(format!(
                "step: {} gradients for {} parameters",
                gradients.len(),
                self.parameters.len()
            )));
        }
        let mut tensors = Vec::with_capacity(gradients.len());
        for (gradient, parameter) in gradients.iter().zip(&self.parameters) {
            tensors.push(gradient.tensor(parameter.bytes / 4, sys::MEMOPT_DTYPE_F32)?);
            gradient.record_stream(stream)?;
            parameter.record_stream(stream)?;
        }
        check(unsafe {
            sys::memopt_optimizer_step(self.handle, tensors.as_ptr(), tensors.len() as u64, &plain, handle)
        })
    }

    /// Steps of a parameter that were not skipped; waits for the stream.
    pub fn steps(&mut self, parameter: u64, stream: &Stream<'_>) -> Result<u64> {
        let handle = stream.on(self.allocator.device)?;
        let mut steps = 0;
        check(unsafe { sys::memopt_optimizer_get_steps_sync(self.handle, parameter, handle, &mut steps) })?;
        Ok(steps)
    }

    /// Writes the states to a file, which replaces an older one whole or not at all.
    pub fn save(&mut self, path: &Path, stream: &Stream<'_>) -> Result<()> {
        let path = c_string("path", &path.to_string_lossy())?;
        let handle = stream.on(self.allocator.device)?;
        check(unsafe { sys::memopt_optimizer_save_sync(self.handle, path.as_ptr(), handle) })
    }

    pub fn load(&mut self, path: &Path, stream: &Stream<'_>) -> Result<()> {
        let path = c_string("path", &path.to_string_lossy())?;
        let handle = stream.on(self.allocator.device)?;
        check(unsafe { sys::memopt_optimizer_load_sync(self.handle, &path.as_ptr(), 1, 0, handle) })
    }
}

impl Drop for Optimizer<'_> {
    fn drop(&mut self) {
        unsafe { sys::memopt_optimizer_destroy(self.handle) };
    }
}
