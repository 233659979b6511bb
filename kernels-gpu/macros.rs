//! What the kernels' sources are written with.

/// `each!(I in 0 1 2 { … })` writes the block once for each constant: arrays in registers cannot be indexed at run
/// time, and not every code generator unrolls a loop.
macro_rules! each {
    ($name:ident in $($value:literal)* $body:block) => {{
        $({
            const $name: usize = $value;
            $body
        })*
    }};
}

/// Declares kernels that take the same parameters: once as a struct for the host, and as each entry's parameter list.
///
/// `kernel NAME(launch bounds) = body;` makes `#[kernel(launch bounds)] NAME`, which calls `body` with the struct.
macro_rules! kernels {
    (
        $(#[$struct_doc:meta])* struct $args:ident $fields:tt
        $($(#[$kernel_doc:meta])* kernel $name:ident $bounds:tt = $body:expr;)*
    ) => {
        kernels!(@struct [$(#[$struct_doc])*] $args $fields);
        $(kernels!(@entry [$(#[$kernel_doc])*] $name $bounds $args $fields $body);)*
    };
    (@struct [$($docs:tt)*] $args:ident { $($(#[$doc:meta])* $field:ident: $ty:ty,)* }) => {
        $($docs)*
        #[derive(Clone, Copy, Debug)]
        pub struct $args { $($(#[$doc])* pub $field: $ty,)* }

        impl $args {
            /// The arguments as the words of a launch, in order.
            pub fn words(&self) -> [u64; [$(stringify!($field)),*].len()] {
                [$(::cuda_std::KernelParam::to_word(self.$field)),*]
            }
        }
    };
    (@entry [$($docs:tt)*] $name:ident ($($bounds:tt)*) $args:ident
        { $($(#[$doc:meta])* $field:ident: $ty:ty,)* } $body:expr) => {
        $($docs)*
        #[::cuda_std::kernel($($bounds)*)]
        #[allow(clippy::too_many_arguments, reason = "an entry takes scalars and pointers only")]
        pub unsafe fn $name($($field: $ty),*) {
            // SAFETY: the launch keeps the kernel's contract.
            unsafe { $body($args { $($field),* }) }
        }
    };
}
