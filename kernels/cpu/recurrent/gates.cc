#include "kernels/cpu/recurrent/gates.h"

#include "kernels/cpu/support/maps.h"
#include "kernels/math/gates.h"

namespace onnx_train::cpu {

template <typename T>
void activate(const GateActivation& f, float limit, int64_t n, const T* x, T* y) {
  if (limit != 0) {
    const T most = limit;
    map(n, x, y, [=](T v) { return v < -most ? -most : v > most ? most : v; });
    x = y;
  }
  math::with_activation<T>(f, [&](auto function) { map(n, x, y, function); });
}

template <typename T>
void differentiate(const GateActivation& f, int64_t n, const T* y, T* dy) {
  math::with_slope<T>(f, [&](auto slope) { map(n, dy, true, y, true, dy, slope); });
}

template void activate(const GateActivation&, float, int64_t, const float*, float*);
template void activate(const GateActivation&, float, int64_t, const double*, double*);
template void differentiate(const GateActivation&, int64_t, const float*, float*);
template void differentiate(const GateActivation&, int64_t, const double*, double*);

}  // namespace onnx_train::cpu
