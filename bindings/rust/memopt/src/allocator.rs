use crate::device::{Device, Stream};
use crate::error::{c_string, check, Error, Result};
use crate::sys;
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr;

/// A caching allocator of device memory. Every thread may use it.
pub struct Allocator<'d> {
    pub(crate) device: &'d Device,
    pub(crate) handle: *mut sys::memopt_allocator,
}

unsafe impl Send for Allocator<'_> {}
unsafe impl Sync for Allocator<'_> {}

impl<'d> Allocator<'d> {
    /// `config` is as `PYTORCH_CUDA_ALLOC_CONF`; empty for the defaults.
    pub fn new(device: &'d Device, config: &str) -> Result<Allocator<'d>> {
        Allocator::with_limit(device, config, 0)
    }

    /// With the most bytes to hold from the device; 0: no limit.
    pub fn with_limit(device: &'d Device, config: &str, limit: u64) -> Result<Allocator<'d>> {
        let config = c_string("config", config)?;
        let options = sys::memopt_allocator_options { limit, ..Default::default() };
        let mut handle = ptr::null_mut();
        check(unsafe { sys::memopt_allocator_create(device.handle, config.as_ptr(), &options, &mut handle) })?;
        Ok(Allocator { device, handle })
    }

    /// A block of the stream: its bytes are not initialised.
    pub fn block(&self, bytes: u64, tag: sys::memopt_tag, stream: &Stream<'_>) -> Result<Block<'_>> {
        let stream = stream.on(self.device)?;
        let mut pointer = ptr::null_mut();
        check(unsafe { sys::memopt_allocator_alloc(self.handle, bytes, tag, stream, &mut pointer) })?;
        Ok(Block { allocator: self, pointer, bytes })
    }

    /// A block with a copy of the values; waits for it.
    pub fn block_from<T: Element>(&self, values: &[T], tag: sys::memopt_tag, stream: &Stream<'_>) -> Result<Block<'_>> {
        let block = self.block((values.len() * size_of::<T>()) as u64, tag, stream)?;
        block.write(values, stream)?;
        Ok(block)
    }

    pub fn tag_stats(&self, tag: sys::memopt_tag) -> Result<sys::memopt_tag_stats> {
        let mut stats = Default::default();
        check(unsafe { sys::memopt_allocator_get_tag_stats(self.handle, tag, &mut stats) })?;
        Ok(stats)
    }

    /// Why the last allocation failed that did.
    pub fn oom_report(&self) -> Result<sys::memopt_oom_report> {
        let mut report = Default::default();
        check(unsafe { sys::memopt_allocator_get_oom_report(self.handle, &mut report) })?;
        Ok(report)
    }

    /// Gives cached memory back until at most `target` bytes are held; returns how much.
    pub fn trim(&self, target: u64) -> Result<u64> {
        let mut released = 0;
        check(unsafe { sys::memopt_allocator_trim_sync(self.handle, target, &mut released) })?;
        Ok(released)
    }

    pub fn as_ptr(&self) -> *mut sys::memopt_allocator {
        self.handle
    }
}

impl Drop for Allocator<'_> {
    fn drop(&mut self) {
        // Blocks that were leaked (mem::forget) are ended too.
        unsafe { sys::memopt_allocator_destroy_force(self.handle) };
    }
}

/// A type of elements that the host and the device share.
///
/// # Safety
/// Any bits are a value, and `DTYPE` has the same size.
pub unsafe trait Element: Copy {
    const DTYPE: sys::memopt_dtype;
}

macro_rules! elements {
    ($($type:ty: $dtype:ident,)*) => {
        $(unsafe impl Element for $type {
            const DTYPE: sys::memopt_dtype = sys::$dtype;
        })*
    };
}
elements! {
    f32: MEMOPT_DTYPE_F32, f64: MEMOPT_DTYPE_F64, u8: MEMOPT_DTYPE_U8, i16: MEMOPT_DTYPE_I16,
    i32: MEMOPT_DTYPE_I32, i64: MEMOPT_DTYPE_I64,
}

/// The whole elements among so many bytes of device memory.
pub(crate) fn copy_out<T: Element>(device: &Device, from: *mut c_void, bytes: u64, stream: &Stream<'_>) -> Result<Vec<T>> {
    let count = bytes as usize / size_of::<T>();
    let mut out = Vec::with_capacity(count);
    let to = out.as_mut_ptr() as *mut c_void;
    let bytes = (count * size_of::<T>()) as u64;
    check(unsafe { sys::memopt_copy_sync(device.handle, to, from, bytes, stream.handle) })?;
    unsafe { out.set_len(count) }; // the copy wrote them
    Ok(out)
}

/// Device memory of an allocator, freed behind the work of the streams that used it.
pub struct Block<'a> {
    pub(crate) allocator: &'a Allocator<'a>,
    pub(crate) pointer: *mut c_void,
    pub(crate) bytes: u64,
}

// A block is device memory: what the host reads and writes goes through copies in the order of a stream.
unsafe impl Send for Block<'_> {}
unsafe impl Sync for Block<'_> {}

impl Block<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer
    }

    /// Says that a stream uses the block, so that its memory is not given away before that work is done.
    /// Methods of this crate do it themselves.
    pub fn record_stream(&self, stream: &Stream<'_>) -> Result<()> {
        let stream = stream.on(self.allocator.device)?;
        if self.pointer.is_null() {
            return Ok(());
        }
        check(unsafe { sys::memopt_allocator_record_stream(self.allocator.handle, self.pointer, stream) })
    }

    /// The first `count` elements as the C interface takes them.
    pub fn tensor(&self, count: u64, dtype: sys::memopt_dtype) -> Result<sys::memopt_tensor> {
        let size = unsafe { sys::memopt_dtype_size(dtype) } as u64;
        match count.checked_mul(size) {
            Some(bytes) if size > 0 && bytes <= self.bytes => {
                Ok(sys::memopt_tensor { data: self.pointer, count, dtype })
            }
            _ => Err(Error::invalid(format!(
                "block: {} elements of type {} were asked for, and it has {} bytes",
                count, dtype, self.bytes
            ))),
        }
    }

    fn copied(&self, bytes: usize, stream: &Stream<'_>) -> Result<sys::memopt_stream> {
        if bytes as u64 > self.bytes {
            return Err(Error::invalid(format!("block: a copy of {} bytes, and it has {}", bytes, self.bytes)));
        }
        self.record_stream(stream)?;
        stream.on(self.allocator.device)
    }

    /// Copies the values to the beginning of the block, and waits for the stream.
    pub fn write<T: Element>(&self, values: &[T], stream: &Stream<'_>) -> Result<()> {
        let bytes = values.len() * size_of::<T>();
        let handle = self.copied(bytes, stream)?;
        let from = values.as_ptr() as *mut c_void;
        check(unsafe { sys::memopt_copy_sync(self.allocator.device.handle, self.pointer, from, bytes as u64, handle) })
    }

    /// All whole elements, behind the work of the stream. Bytes that nothing has written are of no certain value.
    pub fn read<T: Element>(&self, stream: &Stream<'_>) -> Result<Vec<T>> {
        self.copied(self.bytes as usize, stream)?;
        copy_out(self.allocator.device, self.pointer, self.bytes, stream)
    }

    pub fn fill(&self, value: u8, stream: &Stream<'_>) -> Result<()> {
        let handle = self.copied(self.bytes as usize, stream)?;
        let device = self.allocator.device.handle;
        check(unsafe { sys::memopt_fill(device, self.pointer, i32::from(value), self.bytes, handle) })
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        unsafe { sys::memopt_allocator_free(self.allocator.handle, self.pointer) };
    }
}
