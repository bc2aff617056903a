//! Definitions of wire structs and of numbered lists.

/// Structs as they lie in memory: little-endian, unaligned, of the given size.
macro_rules! wire_structs {
    ($(
        $(#[$meta:meta])*
        $name:ident: $size:literal { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* }
    )*) => { $(
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, ::zerocopy::FromBytes, ::zerocopy::IntoBytes,
            ::zerocopy::Immutable, ::zerocopy::KnownLayout, ::zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $(
                #[doc = concat!("`", stringify!($field), "`")]
                #[doc = ""]
                $(#[$field_meta])*
                pub $field: $ty,
            )*
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

/// Enums with a number and a name a variant.
macro_rules! numbered {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $number:literal => $text:literal,)* }
    )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $(
                #[doc = concat!("`", $text, "`, ", stringify!($number))]
                #[doc = ""]
                $(#[$variant_meta])*
                $variant = $number,
            )*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The variant with this number.
            pub fn from_number(number: impl TryInto<u8>) -> Option<Self> {
                match number.try_into().ok()? {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Name, in the style of command lines.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The variant with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )* };
}
