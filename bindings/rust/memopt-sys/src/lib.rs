//! The C interface of libmemopt, declaration by declaration; the headers say what each does. The crate
//! `memopt` is the safe one.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

macro_rules! default {
    ($name:ident $(, $field:ident = $value:expr)*) => {
        impl Default for $name {
            fn default() -> Self {
                let mut it: Self = unsafe { std::mem::zeroed() };
                it.struct_size = std::mem::size_of::<Self>();
                $(it.$field = $value;)*
                it
            }
        }
    };
}

mod bindings;
pub use bindings::*;
