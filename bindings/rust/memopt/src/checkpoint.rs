use crate::allocator::Allocator;
use crate::device::Stream;
use crate::error::{c_string, check, Error, Result};
use crate::sys;
use std::any::Any;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;

type Callback<'a> = Box<dyn FnMut(&mut Run<'_>) -> Result<()> + Send + 'a>;

struct State<'a> {
    callback: Callback<'a>,
    error: Option<Error>,
    panic: Option<Box<dyn Any + Send>>,
}

/// A segment of a model whose leases are dropped after forward and computed again before backward. One
/// thread at a time, any thread.
pub struct Region<'a> {
    allocator: &'a Allocator<'a>,
    handle: *mut sys::memopt_region,
    state: *mut State<'a>,
}

unsafe impl Send for Region<'_> {}

/// One run of a region's callback.
pub struct Run<'r> {
    region: *mut sys::memopt_region,
    pass: sys::memopt_region_pass,
    stream: sys::memopt_stream,
    of: PhantomData<&'r ()>,
}

/// Memory for a value that backward needs, valid until the region's release.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pointer: *mut c_void,
    bytes: u64,
}

unsafe impl Send for Lease {}

impl Lease {
    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Run<'_> {
    /// Whether this is the run before backward.
    pub fn is_recompute(&self) -> bool {
        self.pass == sys::MEMOPT_PASS_RECOMPUTE
    }

    pub fn stream(&self) -> sys::memopt_stream {
        self.stream
    }

    pub fn alloc(&mut self, bytes: u64) -> Result<Lease> {
        let mut pointer = ptr::null_mut();
        check(unsafe { sys::memopt_region_alloc(self.region, bytes, &mut pointer) })?;
        Ok(Lease { pointer, bytes })
    }

    /// Declares a computed value of bytes for the content check.
    pub fn check(&mut self, name: &str, lease: &Lease) -> Result<()> {
        let name = c_string("name", name)?;
        let tensor = sys::memopt_tensor { data: lease.pointer, count: lease.bytes, dtype: sys::MEMOPT_DTYPE_U8 };
        check(unsafe { sys::memopt_region_check(self.region, name.as_ptr(), &tensor) })
    }
}

unsafe extern "C" fn run(
    user: *mut c_void,
    region: *mut sys::memopt_region,
    pass: sys::memopt_region_pass,
    stream: sys::memopt_stream,
) -> sys::memopt_status {
    let state = &mut *(user as *mut State<'_>);
    let mut one = Run { region, pass, stream, of: PhantomData };
    match catch_unwind(AssertUnwindSafe(|| (state.callback)(&mut one))) {
        Ok(Ok(())) => sys::MEMOPT_OK,
        Ok(Err(error)) => {
            let status = error.status();
            state.error = Some(error);
            status
        }
        Err(panic) => {
            state.panic = Some(panic);
            sys::MEMOPT_STATUS_USER
        }
    }
}

impl<'a> Region<'a> {
    /// `callback` enqueues the segment, the same work each time. `options` has mode and check; the name is
    /// for messages.
    pub fn new(
        allocator: &'a Allocator<'a>,
        name: &str,
        options: &sys::memopt_region_options,
        callback: impl FnMut(&mut Run<'_>) -> Result<()> + Send + 'a,
    ) -> Result<Region<'a>> {
        let name = c_string("name", name)?;
        let options =
            sys::memopt_region_options { name: name.as_ptr(), mode: options.mode, check: options.check, ..Default::default() };
        let state = Box::into_raw(Box::new(State { callback: Box::new(callback), error: None, panic: None }));
        let callbacks =
            sys::memopt_region_callbacks { run: Some(run), user: state as *mut c_void, ..Default::default() };
        let mut handle = ptr::null_mut();
        let status = unsafe {
            sys::memopt_region_create(allocator.device.handle, allocator.handle, &callbacks, &options, &mut handle)
        };
        let region = Region { allocator, handle, state }; // owns the state from here on
        check(status)?;
        Ok(region)
    }

    /// A callback's own error and panic come out as they are.
    fn finish(&mut self, status: sys::memopt_status) -> Result<()> {
        let result = check(status);
        let state = unsafe { &mut *self.state };
        let (error, panic) = (state.error.take(), state.panic.take());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        match (result, error) {
            (Err(_), Some(error)) => Err(error),
            (result, _) => result,
        }
    }

    pub fn forward(&mut self, stream: &Stream<'_>) -> Result<()> {
        let stream = stream.on(self.allocator.device)?;
        let status = unsafe { sys::memopt_region_forward(self.handle, stream) };
        self.finish(status)
    }

    /// Runs the segment again and keeps its leases until [`Region::release`].
    pub fn recompute(&mut self, stream: &Stream<'_>) -> Result<()> {
        let stream = stream.on(self.allocator.device)?;
        let status = unsafe { sys::memopt_region_recompute(self.handle, stream) };
        self.finish(status)
    }

    pub fn release(&mut self) -> Result<()> {
        check(unsafe { sys::memopt_region_release(self.handle) })
    }

    pub fn stats(&mut self) -> Result<sys::memopt_region_stats> {
        let mut stats = Default::default();
        check(unsafe { sys::memopt_region_get_stats(self.handle, &mut stats) })?;
        Ok(stats)
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        unsafe {
            sys::memopt_region_destroy(self.handle);
            drop(Box::from_raw(self.state));
        }
    }
}
