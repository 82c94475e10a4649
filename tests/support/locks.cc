#include "tests/support/locks.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

#include "tests/support/allocations.h"

namespace {

std::atomic<size_t> locks = 0, onednn_locks = 0, contended_locks = 0;

// Takes the lock if it is free; else counts, and waits as the library's function of this name does.
template <typename Lock>
int take(Lock* lock, int (*try_lock)(Lock*), const char* name, const void* caller) {
  ++(onnx_train::is_onednn(caller) ? onednn_locks : locks);
  if (try_lock(lock) == 0) return 0;
  if (!onnx_train::is_onednn(caller)) ++contended_locks;
  return reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, name))(lock);
}

}  // namespace

// These stand in front of the library's functions.
extern "C" __attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return take(mutex, pthread_mutex_trylock, "pthread_mutex_lock", __builtin_return_address(0));
}
extern "C" __attribute__((visibility("default"))) int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  return take(lock, pthread_rwlock_tryrdlock, "pthread_rwlock_rdlock", __builtin_return_address(0));
}
extern "C" __attribute__((visibility("default"))) int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  return take(lock, pthread_rwlock_trywrlock, "pthread_rwlock_wrlock", __builtin_return_address(0));
}

namespace onnx_train {

size_t count_locks() { return locks; }
size_t count_onednn_locks() { return onednn_locks; }
size_t count_contended_locks() { return contended_locks; }

}  // namespace onnx_train
