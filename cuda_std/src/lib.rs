//! What GPU kernels are written against: the GPU itself, or an emulator on any machine.
