#include "kernels/spin_limit/spin_limit.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

// The least number of rounds with which no step is slower on a machine of its own (docs/performance.md).
char limit[] = "GOMP_SPINCOUNT=10000";
char** before = nullptr;  // the environment without the limit
char** added = nullptr;   // the environment with it, which is kept, so that it is no leak
bool is_restored = false;

// Not setenv, which may free the array of the environment while another thread reads it. This one is never freed.
__attribute__((constructor)) void limit_spinning() {
  if (!environ || std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  size_t count = 0;
  while (environ[count]) ++count;
  added = static_cast<char**>(std::malloc((count + 2) * sizeof(char*)));
  if (!added) return;
  std::memcpy(added, environ, count * sizeof(char*));
  added[count] = limit;
  added[count + 1] = nullptr;
  before = environ;
  environ = added;
}

}  // namespace

void onnx_train_restore_environment() {
  if (!added || is_restored) return;
  if (environ == added) {
    environ = before;
  } else {  // another constructor has set a variable since
    unsetenv("GOMP_SPINCOUNT");
  }
  is_restored = true;
}
