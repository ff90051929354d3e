//! Memory savers for training programs: the safe form of libmemopt.
//!
//! Owners end their handles when they are dropped, and borrow what they need: an allocator outlives its
//! blocks, and a device its allocators. A failed call is an [`Error`] with the library's message.
//!
//! ```
//! use memopt::{Allocator, Device, Optimizer, sys};
//!
//! # fn main() -> memopt::Result<()> {
//! let device = Device::open("cpu")?;
//! let stream = device.default_stream();
//! let allocator = Allocator::new(&device, "expandable_segments:True")?;
//! let weights = allocator.block_from(&[1.0f32; 5000], sys::MEMOPT_TAG_WEIGHTS, &stream)?;
//! let gradients = allocator.block_from(&[0.5f32; 5000], sys::MEMOPT_TAG_GRADIENTS, &stream)?;
//!
//! let options = sys::memopt_optimizer_options { state_format: sys::MEMOPT_STATE_8BIT, ..Default::default() };
//! let mut optimizer = Optimizer::new(&allocator, &options)?;
//! let group = optimizer.add_group(&sys::memopt_optimizer_group::default())?;
//! optimizer.add_parameter(group, &weights, &stream)?;
//! optimizer.step(&[&gradients], &sys::memopt_step_options::default(), &stream)?;
//! assert!(weights.read::<f32>(&stream)?[0] < 1.0);
//! # Ok(())
//! # }
//! ```
mod allocator;
mod checkpoint;
mod device;
mod error;
mod offload;
mod optimizer;

pub use allocator::{Allocator, Block, Element};
pub use checkpoint::{Lease, Region, Run};
pub use device::{Device, Stream};
pub use error::{Error, Result};
pub use memopt_sys as sys;
pub use offload::{Offloader, Ticket};
pub use optimizer::Optimizer;
