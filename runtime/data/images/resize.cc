#include <algorithm>
#include <cmath>

#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

double bilinear_weight(double x) { return std::max(0.0, 1 - std::abs(x)); }

double bicubic_weight(double x) {  // Keys, a = -0.5
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

constexpr int kWeightBits = 22;

// For each pixel along one axis of the result: the first pixel that it averages, and the weights from there on.
struct AxisWeights {
  struct Span {
    int first, count;
  };
  std::vector<Span> spans;
  std::vector<int> weights;  // `stride` for each pixel
  int stride = 0;
};

AxisWeights weights_of(int from, int to, Filter filter) {
  const double reach = filter == Filter::kBicubic ? 2 : 1;
  const double scale = static_cast<double>(from) / to, stretch = std::max(scale, 1.0), support = reach * stretch;
  AxisWeights axis;
  axis.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  axis.weights.resize(static_cast<size_t>(axis.stride) * static_cast<size_t>(to));
  std::vector<double> exact(static_cast<size_t>(axis.stride));
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(from, static_cast<int>(center + support + 0.5)), count = end - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      const double x = (k + first - center + 0.5) / stretch;
      const double weight = filter == Filter::kBicubic ? bicubic_weight(x) : bilinear_weight(x);
      exact[static_cast<size_t>(k)] = weight;
      sum += weight;
    }
    int* out = axis.weights.data() + static_cast<size_t>(i) * static_cast<size_t>(axis.stride);
    for (int k = 0; k < count; ++k) {
      const double weight = exact[static_cast<size_t>(k)] / sum * (1 << kWeightBits);
      out[k] = static_cast<int>(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    axis.spans.push_back({first, count});
  }
  return axis;
}

uint8_t rounded_byte(int sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

template <int kChannels>
void resize_row(const uint8_t* from, const AxisWeights& axis, uint8_t* to) {
  const int* weights = axis.weights.data();
  for (const AxisWeights::Span& span : axis.spans) {
    const uint8_t* pixel = from + static_cast<ptrdiff_t>(span.first) * kChannels;
    int sums[kChannels];
    for (int& sum : sums) sum = 1 << (kWeightBits - 1);
    for (int k = 0; k < span.count; ++k, pixel += kChannels) {
      for (int c = 0; c < kChannels; ++c) sums[c] += pixel[c] * weights[k];
    }
    for (const int sum : sums) *to++ = rounded_byte(sum);
    weights += axis.stride;
  }
}

Picture resized_in_width(const Picture& from, const Box& box, int width, Filter filter) {
  const AxisWeights axis = weights_of(box.width, width, filter);
  Picture to(box.height, width, from.channels);
  for (int y = 0; y < to.height; ++y) {
    const uint8_t* row = from.at(box.top + y, box.left);
    from.channels == 3 ? resize_row<3>(row, axis, to.at(y, 0)) : resize_row<1>(row, axis, to.at(y, 0));
  }
  return to;
}

Picture resized_in_height(const Picture& from, int height, Filter filter) {
  const AxisWeights axis = weights_of(from.height, height, filter);
  Picture to(height, from.width, from.channels);
  const size_t row = static_cast<size_t>(from.width) * static_cast<size_t>(from.channels);
  std::vector<int> sums(row);
  for (int y = 0; y < height; ++y) {
    const AxisWeights::Span& span = axis.spans[static_cast<size_t>(y)];
    const int* weights = axis.weights.data() + static_cast<ptrdiff_t>(y) * axis.stride;
    std::fill(sums.begin(), sums.end(), 1 << (kWeightBits - 1));
    for (int k = 0; k < span.count; ++k) {
      const uint8_t* in = from.at(span.first + k, 0);
      for (size_t i = 0; i < row; ++i) sums[i] += in[i] * weights[k];
    }
    std::transform(sums.begin(), sums.end(), to.at(y, 0), rounded_byte);
  }
  return to;
}

Picture picked(const Picture& from, const Box& box, int height, int width) {
  Picture to(height, width, from.channels);
  const auto source = [](int i, int from_size, int to_size) {
    return std::min(static_cast<int>((i + 0.5) * from_size / to_size), from_size - 1);
  };
  for (int y = 0; y < height; ++y) {
    const int from_y = box.top + source(y, box.height, height);
    for (int x = 0; x < width; ++x) {
      std::copy_n(from.at(from_y, box.left + source(x, box.width, width)), from.channels, to.at(y, x));
    }
  }
  return to;
}

Picture resampled(const Picture& from, const Box& box, int height, int width, Filter filter) {
  if (from.channels == 0) return {height, width, 0};
  const bool keeps_width = box.width == width, keeps_height = box.height == height;
  if (keeps_width && keeps_height) return cropped(from, box);
  if (filter == Filter::kNearest) return picked(from, box, height, width);
  constexpr int64_t kMostBetween = 1 << 26;  // pixels of the picture that is made between the two steps
  if (int64_t{box.height} * width > kMostBetween) {
    const Picture low = resized_in_height(cropped(from, box), height, filter);
    return resized_in_width(low, {0, 0, height, box.width}, width, filter);
  }
  const Picture wide = keeps_width ? cropped(from, box) : resized_in_width(from, box, width, filter);
  return keeps_height ? wide : resized_in_height(wide, height, filter);
}

}  // namespace

Picture resized(const Picture& from, const Box& box, int height, int width, Filter filter) {
  Picture to = resampled(from, box, height, width, filter);
  const double x = double(width) / box.width, y = double(height) / box.height;
  to.from_original = then(from.from_original, {x, 0, -x * box.left, 0, y, -y * box.top});
  return to;
}

Picture resized(const Picture& from, int height, int width, Filter filter) {
  return resized(from, {0, 0, from.height, from.width}, height, width, filter);
}

Picture cropped(const Picture& from, const Box& box, uint8_t border) {
  Picture to(box.height, box.width, from.channels);
  to.from_original = then(from.from_original, {1, 0, double(-box.left), 0, 1, double(-box.top)});
  if (to.channels == 0) return to;
  if (border != 0) std::fill(to.bytes.begin(), to.bytes.end(), border);
  const int left = std::max(box.left, 0), right = std::min(box.left + box.width, from.width);
  for (int y = std::max(0, -box.top); y < box.height && box.top + y < from.height && left < right; ++y) {
    std::copy_n(from.at(box.top + y, left), (right - left) * from.channels, to.at(y, left - box.left));
  }
  return to;
}

}  // namespace onnx_train
