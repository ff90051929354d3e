//! The C interface of libmemopt, declaration by declaration; the headers say what each does. The crate
//! `memopt` is the safe one.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod bindings;
pub use bindings::*;
