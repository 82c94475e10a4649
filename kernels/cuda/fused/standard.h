// The part of the C++ standard library that kernels/math needs, because NVRTC has none: replaces <bit>, <cmath>,
// <cstddef>, <cstdint>, <limits> and <type_traits>.
#ifndef ONNX_TRAIN_STANDARD
#define ONNX_TRAIN_STANDARD

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

namespace std {

using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using size_t = decltype(sizeof(0));

template <typename A, typename B>
inline constexpr bool is_same_v = false;
template <typename A>
inline constexpr bool is_same_v<A, A> = true;
template <typename T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <typename T>
inline constexpr bool is_integral_v = is_same_v<T, bool> || is_same_v<T, int8_t> || is_same_v<T, uint8_t> ||
                                      is_same_v<T, int16_t> || is_same_v<T, uint16_t> || is_same_v<T, int32_t> ||
                                      is_same_v<T, uint32_t> || is_same_v<T, int64_t> || is_same_v<T, uint64_t>;
template <typename T>
inline constexpr bool is_signed_v = T(-1) < T(0);
template <typename T>
inline constexpr bool is_unsigned_v = is_integral_v<T> && !is_signed_v<T>;

template <bool kCondition, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kCondition, typename A, typename B>
using conditional_t = typename conditional<kCondition, A, B>::type;

template <typename T>
struct make_unsigned {
  using type =
      conditional_t<sizeof(T) == 1, uint8_t,
                    conditional_t<sizeof(T) == 2, uint16_t, conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
};
template <typename T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <typename To, typename From>
__host__ __device__ constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

template <typename T>
struct numeric_limits {  // integers only
  static constexpr bool has_infinity = false;
  static constexpr int digits = sizeof(T) * 8 - is_signed_v<T>;
  static __host__ __device__ constexpr T max() {
    return static_cast<T>(static_cast<make_unsigned_t<T>>(-1) >> (is_signed_v<T> ? 1 : 0));
  }
  static __host__ __device__ constexpr T lowest() { return is_signed_v<T> ? static_cast<T>(-max() - 1) : T(0); }
  static __host__ __device__ constexpr T min() { return lowest(); }
  static __host__ __device__ constexpr T infinity() { return T(0); }
};
template <>
struct numeric_limits<float> {
  static constexpr bool has_infinity = true;
  static __host__ __device__ constexpr float min() { return 1.17549435e-38f; }
  static __host__ __device__ constexpr float max() { return 3.40282347e+38f; }
  static __host__ __device__ constexpr float lowest() { return -max(); }
  static __host__ __device__ constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000u); }
  static __host__ __device__ constexpr float quiet_NaN() { return __builtin_bit_cast(float, 0x7fc00000u); }
};
template <>
struct numeric_limits<double> {
  static constexpr bool has_infinity = true;
  static __host__ __device__ constexpr double min() { return 2.2250738585072014e-308; }
  static __host__ __device__ constexpr double max() { return 1.7976931348623157e+308; }
  static __host__ __device__ constexpr double lowest() { return -max(); }
  static __host__ __device__ constexpr double infinity() { return __builtin_bit_cast(double, 0x7ff0000000000000ul); }
  static __host__ __device__ constexpr double quiet_NaN() { return __builtin_bit_cast(double, 0x7ff8000000000000ul); }
};

#define ONNX_TRAIN_FUNCTION(name)                                \
  __device__ inline float name(float x) { return ::name##f(x); } \
  __device__ inline double name(double x) { return ::name(x); }
ONNX_TRAIN_FUNCTION(acos)
ONNX_TRAIN_FUNCTION(acosh)
ONNX_TRAIN_FUNCTION(asin)
ONNX_TRAIN_FUNCTION(asinh)
ONNX_TRAIN_FUNCTION(atan)
ONNX_TRAIN_FUNCTION(atanh)
ONNX_TRAIN_FUNCTION(ceil)
ONNX_TRAIN_FUNCTION(cos)
ONNX_TRAIN_FUNCTION(cosh)
ONNX_TRAIN_FUNCTION(erf)
ONNX_TRAIN_FUNCTION(exp)
ONNX_TRAIN_FUNCTION(expm1)
ONNX_TRAIN_FUNCTION(fabs)
ONNX_TRAIN_FUNCTION(floor)
ONNX_TRAIN_FUNCTION(log)
ONNX_TRAIN_FUNCTION(log1p)
ONNX_TRAIN_FUNCTION(nearbyint)
ONNX_TRAIN_FUNCTION(rint)
ONNX_TRAIN_FUNCTION(sin)
ONNX_TRAIN_FUNCTION(sinh)
ONNX_TRAIN_FUNCTION(sqrt)
ONNX_TRAIN_FUNCTION(tan)
ONNX_TRAIN_FUNCTION(tanh)
ONNX_TRAIN_FUNCTION(trunc)
#undef ONNX_TRAIN_FUNCTION
#define ONNX_TRAIN_FUNCTION(name)                                            \
  __device__ inline float name(float x, float y) { return ::name##f(x, y); } \
  __device__ inline double name(double x, double y) { return ::name(x, y); }
ONNX_TRAIN_FUNCTION(copysign)
ONNX_TRAIN_FUNCTION(fmod)
ONNX_TRAIN_FUNCTION(pow)
#undef ONNX_TRAIN_FUNCTION

template <typename T>
__device__ inline bool isnan(T x) {
  return x != x;
}
template <typename T>
__device__ inline bool isinf(T x) {
  return x == numeric_limits<T>::infinity() || x == -numeric_limits<T>::infinity();
}

}  // namespace std

#endif
