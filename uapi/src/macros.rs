//! Definitions that are their own table: what these macros define and what `abi` lists cannot drift apart.

/// Defines structs and, with `abi-tables`, the module's `LAYOUTS`.
///
/// `Name: SIZE = "c_name" { field: type, field: type = "c.path", ..padding: type }`. The C path of a field is
/// its Rust name unless given; `..` names padding that C leaves implicit. A dot in the C name leads to an
/// unnamed struct inside a named one.
macro_rules! structs {
    ($(
        $(#[$meta:meta])*
        $name:ident: $size:literal = $c_name:literal {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty $(= $path:literal)?,)*
            $(..$pad:ident: $pad_ty:ty)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("Kernel: `", $c_name, "`")]
            #[doc(alias = $c_name)]
            #[derive(
                Clone, Copy, Debug, Default,
                ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable, ::zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $(
                    #[doc = concat!("`", c_path!($field $($path)?), "`")]
                    #[doc = ""]
                    $(#[$field_meta])*
                    pub $field: $ty,
                )*
                $(
                    /// Padding, zero.
                    pub $pad: $pad_ty,
                )?
            }

            const _: () = assert!(size_of::<$name>() == $size);
        )*

        #[cfg(feature = "abi-tables")]
        pub(crate) const LAYOUTS: &[crate::abi::Layout] = &[$(
            crate::abi::Layout {
                c_name: $c_name,
                size: $size,
                fields: &[$(
                    crate::abi::Field {
                        c_path: c_path!($field $($path)?),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$ty>(),
                    },
                )*],
            },
        )*];
    };
}

macro_rules! c_path {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $path:literal) => {
        $path
    };
}

/// Defines constants, `singles` and modules of them: `NAME = value => "C_NAME"`.
macro_rules! define_constants {
    (
        $(singles {
            $($(#[$single_meta:meta])* $single:ident: $single_ty:ty = $single_value:expr => $single_c:literal,)*
        })?
        $(
            $(#[$meta:meta])*
            mod $module:ident: $ty:ty {
                $($(#[$const_meta:meta])* $name:ident = $value:expr => $c_name:literal,)*
            }
        )*
    ) => {
        $($(
            #[doc = concat!("`", $single_c, "`")]
            #[doc = ""]
            $(#[$single_meta])*
            pub const $single: $single_ty = $single_value;
        )*)?
        $(
            $(#[$meta])*
            pub mod $module {
                $(
                    #[doc = concat!("`", $c_name, "`")]
                    #[doc = ""]
                    $(#[$const_meta])*
                    #[doc(alias = $c_name)]
                    pub const $name: $ty = $value;
                )*
            }
        )*
    };
}

/// [`define_constants`], and with `abi-tables` the module's `CONSTANTS`.
macro_rules! constants {
    (
        $(singles {
            $($(#[$single_meta:meta])* $single:ident: $single_ty:ty = $single_value:expr => $single_c:literal,)*
        })?
        $(
            $(#[$meta:meta])*
            mod $module:ident: $ty:ty {
                $($(#[$const_meta:meta])* $name:ident = $value:expr => $c_name:literal,)*
            }
        )*
    ) => {
        define_constants! {
            $(singles { $($(#[$single_meta])* $single: $single_ty = $single_value => $single_c,)* })?
            $($(#[$meta])* mod $module: $ty { $($(#[$const_meta])* $name = $value => $c_name,)* })*
        }

        #[cfg(feature = "abi-tables")]
        pub(crate) const CONSTANTS: &[crate::abi::Constant] = &[
            $($(crate::abi::Constant { c_name: $single_c, value: $single as u64 },)*)?
            $($(crate::abi::Constant { c_name: $c_name, value: $module::$name as u64 },)*)*
        ];
    };
}

/// Defines flag words with `bitflags`: `Name: type { FLAG = value => "C_NAME" }`.
macro_rules! define_flags {
    ($(
        $(#[$($meta:tt)+])*
        $name:ident: $ty:ty { $($(#[$($flag_meta:tt)+])* $flag:ident = $value:expr => $c_name:literal,)* }
    )*) => {
        ::bitflags::bitflags! {
            $(
                $(#[$($meta)+])*
                #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
                pub struct $name: $ty {
                    $(
                        #[doc = concat!("`", $c_name, "`")]
                        #[doc = ""]
                        $(#[$($flag_meta)+])*
                        #[doc(alias = $c_name)]
                        const $flag = $value;
                    )*
                }
            )*
        }
    };
}

/// [`define_flags`], and with `abi-tables` the module's `FLAGS`.
macro_rules! flags {
    ($(
        $(#[$($meta:tt)+])*
        $name:ident: $ty:ty { $($(#[$($flag_meta:tt)+])* $flag:ident = $value:expr => $c_name:literal,)* }
    )*) => {
        define_flags! {
            $($(#[$($meta)+])* $name: $ty { $($(#[$($flag_meta)+])* $flag = $value => $c_name,)* })*
        }

        #[cfg(feature = "abi-tables")]
        pub(crate) const FLAGS: &[crate::abi::Constant] = &[
            $($(crate::abi::Constant { c_name: $c_name, value: $name::$flag.bits() as u64 },)*)*
        ];
    };
}
