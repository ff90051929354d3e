use crate::error::{c_string, check, Error, Result};
use crate::sys;
use std::ptr;

/// An open device. Every thread may use it.
pub struct Device {
    pub(crate) handle: *mut sys::memopt_device,
}

unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Device {
    /// Opens `"cpu"`, `"cuda:0"`, `"hip:1"`, … with default options.
    pub fn open(name: &str) -> Result<Device> {
        Device::open_with(name, &Default::default())
    }

    pub fn open_with(name: &str, options: &sys::memopt_device_options) -> Result<Device> {
        let name = c_string("device", name)?;
        let mut handle = ptr::null_mut();
        check(unsafe { sys::memopt_device_open(name.as_ptr(), options, &mut handle) })?;
        Ok(Device { handle })
    }

    /// Waits for all work of the device.
    pub fn sync(&self) -> Result<()> {
        check(unsafe { sys::memopt_device_sync(self.handle) })
    }

    pub fn memory_info(&self) -> Result<sys::memopt_memory_info> {
        let mut info = Default::default();
        check(unsafe { sys::memopt_device_get_memory_info(self.handle, &mut info) })?;
        Ok(info)
    }

    pub fn default_stream(&self) -> Stream<'_> {
        Stream { device: self, handle: ptr::null_mut() }
    }

    pub fn new_stream(&self) -> Result<Stream<'_>> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::memopt_stream_create(self.handle, &mut handle) })?;
        Ok(Stream { device: self, handle })
    }

    /// For calls of `sys` that this crate has no method for.
    pub fn as_ptr(&self) -> *mut sys::memopt_device {
        self.handle
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        unsafe { sys::memopt_device_close(self.handle) };
    }
}

/// A stream of a device. Dropping one of [`Device::new_stream`] waits for its work.
pub struct Stream<'d> {
    device: &'d Device,
    pub(crate) handle: sys::memopt_stream,
}

unsafe impl Send for Stream<'_> {}
unsafe impl Sync for Stream<'_> {}

impl Stream<'_> {
    /// Waits for the work that is on the stream.
    pub fn sync(&self) -> Result<()> {
        check(unsafe { sys::memopt_stream_sync(self.device.handle, self.handle) })
    }

    pub fn as_ptr(&self) -> sys::memopt_stream {
        self.handle
    }

    /// The handle, for work of `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<sys::memopt_stream> {
        if self.device.handle != device.handle {
            return Err(Error::invalid("stream: it is of another device".to_string()));
        }
        Ok(self.handle)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            unsafe { sys::memopt_stream_destroy(self.device.handle, self.handle) };
        }
    }
}
