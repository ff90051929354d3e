use crate::allocator::{copy_out, Allocator, Block, Element};
use crate::device::Stream;
use crate::error::{check, Error, Result};
use crate::sys;
use std::mem::forget;
use std::os::raw::c_void;
use std::ptr;

/// Moves blocks to host memory between forward and backward. One thread at a time, any thread.
pub struct Offloader<'a> {
    allocator: &'a Allocator<'a>,
    handle: *mut sys::memopt_offloader,
}

unsafe impl Send for Offloader<'_> {}

/// A value of an offloader; dropping it releases it.
pub struct Ticket<'o> {
    offloader: &'o Offloader<'o>,
    number: sys::memopt_ticket,
    bytes: u64,
}

impl<'a> Offloader<'a> {
    /// With `host_limit` bytes of page-locked memory at most; 0: no limit.
    pub fn new(allocator: &'a Allocator<'a>, host_limit: u64) -> Result<Offloader<'a>> {
        let options = sys::memopt_offloader_options { host_limit, ..Default::default() };
        let mut handle = ptr::null_mut();
        check(unsafe {
            sys::memopt_offloader_create(allocator.device.handle, allocator.handle, &options, &mut handle)
        })?;
        Ok(Offloader { allocator, handle })
    }

    /// Takes the block over: it is copied behind the work of the stream, then freed. The block is of the
    /// offloader's allocator; on failure it comes back.
    pub fn pack<'b>(&self, block: Block<'b>, stream: &Stream<'_>) -> std::result::Result<Ticket<'_>, (Error, Block<'b>)> {
        let mut number = 0;
        let packed = stream.on(self.allocator.device).and_then(|handle| {
            if block.allocator.handle != self.allocator.handle {
                return Err(Error::invalid("pack: the block is of another allocator".to_string()));
            }
            block.record_stream(stream)?;
            check(unsafe { sys::memopt_offloader_pack(self.handle, block.pointer, block.bytes, handle, &mut number) })
        });
        match packed {
            Ok(()) => {
                let bytes = block.bytes;
                forget(block);
                Ok(Ticket { offloader: self, number, bytes })
            }
            Err(error) => Err((error, block)),
        }
    }

    pub fn stats(&self) -> Result<sys::memopt_offloader_stats> {
        let mut stats = Default::default();
        check(unsafe { sys::memopt_offloader_get_stats(self.handle, &mut stats) })?;
        Ok(stats)
    }
}

impl Ticket<'_> {
    /// Starts the copy back, ahead of its use.
    pub fn prefetch(&self) -> Result<()> {
        check(unsafe { sys::memopt_offloader_prefetch(self.offloader.handle, self.number) })
    }

    /// The value in device memory, valid in the order of the stream until the ticket is released or dropped.
    pub fn unpack(&self, stream: &Stream<'_>) -> Result<*mut c_void> {
        let handle = stream.on(self.offloader.allocator.device)?;
        let mut data = ptr::null_mut();
        check(unsafe { sys::memopt_offloader_unpack(self.offloader.handle, self.number, handle, &mut data) })?;
        Ok(data)
    }

    /// Unpacks the value and copies it to the host.
    pub fn read<T: Element>(&self, stream: &Stream<'_>) -> Result<Vec<T>> {
        copy_out(self.offloader.allocator.device, self.unpack(stream)?, self.bytes, stream)
    }

    /// Ends the value behind the work of the stream that used it last.
    pub fn release(self, stream: &Stream<'_>) -> Result<()> {
        let handle = stream.on(self.offloader.allocator.device)?;
        check(unsafe { sys::memopt_offloader_release(self.offloader.handle, self.number, handle) })?;
        forget(self);
        Ok(())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        unsafe { sys::memopt_offloader_release(self.offloader.handle, self.number, ptr::null_mut()) };
    }
}

impl Drop for Offloader<'_> {
    fn drop(&mut self) {
        unsafe { sys::memopt_offloader_destroy_force(self.handle) };
    }
}
