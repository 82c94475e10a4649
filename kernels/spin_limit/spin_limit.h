// libonnxtrain_spin_limit.so bounds how long OpenMP's threads spin at a barrier. libgomp reads GOMP_SPINCOUNT once, in
// its constructor, and offers no function for it. Its default, 300,000 rounds or some ten milliseconds, makes a step
// many times as long when another process takes a core: the threads that have one spin for the thread that has none,
// instead of giving it theirs.
//
// The constructor of this library runs before that of libgomp, because the linker lists it after all libraries that
// need libgomp (CMakeLists.txt), and glibc initializes a dependency that is listed later first. It adds GOMP_SPINCOUNT
// to the environment, unless the user has set that or OMP_WAIT_POLICY. The constructor of what links it, which runs
// after that of libgomp, takes it out again. Where another library has loaded this libgomp before, nothing changes.
#pragma once

// Makes the environment what it was before the constructor of this library. Calls after the first do nothing.
extern "C" void onnx_train_restore_environment();
