#include "runtime/data/data_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>

#include "kernels/device.h"
#include "kernels/dispatch.h"
#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/ir/load_element.h"

namespace onnx_train {
namespace {

constexpr int64_t kChunk = 4096;  // elements tested together, without branches

// Whether the model cannot use the element.
template <typename T>
struct InRange {
  const IndexRange& range;
  bool operator()(T value) const {
    bool fits;
    if constexpr (std::is_same_v<T, uint64_t>) {
      fits =
          range.most >= 0 && value <= static_cast<uint64_t>(range.most) && static_cast<int64_t>(value) >= range.least;
    } else {
      fits = (static_cast<int64_t>(value) >= range.least) & (static_cast<int64_t>(value) <= range.most);
    }
    return fits | (range.has_other & (static_cast<int64_t>(value) == range.other));
  }
};

// Tests the element in the model's type: a double may be out of its range.
template <typename T, typename To>
struct IsFinite {
  bool operator()(T value) const {
    const To number = static_cast<To>(value);
    return number - number == To{0};
  }
};

// The first of elements [begin, end) for which `good` is false; `end` if there is none.
template <typename T, typename Good>
int64_t first_bad(const char* data, int64_t begin, int64_t end, const Good& good) {
  for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const int64_t stop = std::min(chunk + kChunk, end);
    bool all = true;
    for (int64_t i = chunk; i < stop; ++i) all &= good(load_element<T>(data, i));
    for (int64_t i = chunk; !all && i < stop; ++i) {
      if (!good(load_element<T>(data, i))) return i;
    }
  }
  return end;
}

// The same on all threads if it is worth it: each thread takes the next chunk, so that all read close to each other,
// and no thread continues after an element has been found.
template <typename T, typename Good>
int64_t first_bad_of_many(const char* data, int64_t begin, int64_t end, const Good& good) {
  constexpr int64_t kPart = 1 << 20;
  if (end - begin <= 2 * kPart) return first_bad<T>(data, begin, end, good);
  std::atomic<int64_t> next{begin}, found{end};
  const auto work = [&] {
    for (int64_t part = next.fetch_add(kPart); part < found; part = next.fetch_add(kPart)) {
      const int64_t stop = std::min(part + kPart, end), bad = first_bad<T>(data, part, stop, good);
      int64_t known = found;
      while (bad < stop && bad < known && !found.compare_exchange_weak(known, bad)) {
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < num_threads(); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  return found;
}

// Calls `look(tag, good, why)` with the array's element type for each test that the elements must pass.
template <typename Look>
void for_each_test(const Dataset::Array& array, const std::vector<IndexRange>* ranges, Look&& look) {
  const DType from = array.data.dtype();
  if (is_float(from)) {
    const bool is_double = array.dtype == DType::kDouble;
    const std::string why = is_double ? "every number must be finite" : "every number must be finite in float32";
    switch (from) {
      case DType::kFloat: return look(float{}, IsFinite<float, float>(), why);
      case DType::kDouble:
        return is_double ? look(double{}, IsFinite<double, double>(), why)
                         : look(double{}, IsFinite<double, float>(), why);
      case DType::kFloat16: return look(Float16{}, IsFinite<Float16, float>(), why);
      case DType::kBFloat16: return look(BFloat16{}, IsFinite<BFloat16, float>(), why);
      default: return;
    }
  }
  if (!ranges || !is_integer(from)) return;
  for (const IndexRange& range : *ranges) {
    std::string why = concat(range.reader, " takes ", range.least, " to ", range.most);
    if (range.has_other) why += concat(", and ignores ", range.other);
    dispatch_numeric(from, [&](auto tag) { look(tag, InRange<decltype(tag)>{range}, why); });
  }
}

// The index of an element in its array, as "[17, 3]".
std::string place(const Shape& shape, int64_t element) {
  std::string text;
  for (size_t i = shape.size(); i-- > 0;) {
    text = concat(element % shape[i], text.empty() ? "" : ", ", text);
    element /= shape[i];
  }
  return "[" + text + "]";
}

// Describes element `element` of the array, whose bytes are at `at`.
std::string describe(const Dataset::Array& array, int64_t element, const char* at, const std::string& why) {
  const int64_t row = std::max<int64_t>(num_elements(array.row), 1);
  const DType type = array.data.dtype();
  // A copy is aligned.
  Tensor value(type, {1});
  std::memcpy(value.data(), at, size_of(type));
  return concat("'", array.name, "' holds ", value.at(0), array.per_sample ? concat(" in sample ", element / row) : "",
                array.rows ? concat(", ", array.rows->describe(element / row)) : "", " (element ",
                place(array.data.shape(), element), "); ", why);
}

// The sizes of the data: of arrays that are cut into batches all but the first.
std::map<std::string, Dims> sizes_of(const Dataset& data) {
  std::map<std::string, Dims> sizes;
  for (const Dataset::Array& array : data.arrays()) {
    Dims& dims = sizes[array.name];
    if (array.per_sample) dims.emplace_back();
    dims.insert(dims.end(), array.row.begin(), array.row.end());
  }
  return sizes;
}

}  // namespace

DataCheck::DataCheck(const Dataset* data, const Model& model, const std::string& entry)
    : data_(*data), ranges_(index_ranges(model, entry, sizes_of(*data))) {}

std::string DataCheck::first_fault() const { return first_fault(nullptr, data_.num_samples()); }

std::string DataCheck::first_fault(const int64_t* samples, int64_t count) const {
  std::string fault;
  const bool is_all = !samples && !data_.is_selection();
  for (const Dataset::Array& array : data_.arrays()) {
    if (!samples && array.rows && !array.rows->is_quick()) continue;  // a step finds what is wrong with them
    const auto ranges = ranges_.find(array.name);
    const bool is_whole = !array.per_sample || (is_all && !array.rows);
    for_each_test(array, ranges == ranges_.end() ? nullptr : &ranges->second, [&](auto tag, auto good, auto& why) {
      using T = decltype(tag);
      if (!fault.empty()) return;
      if (is_whole) {
        const auto* data = static_cast<const char*>(array.data.data());
        const int64_t end = array.data.size(), bad = first_bad_of_many<T>(data, 0, end, good);
        if (bad < end) fault = describe(array, bad, data + bad * static_cast<int64_t>(sizeof(T)), why);
        return;
      }
      Tensor buffer;
      const int64_t elements = num_elements(array.row);
      for (int64_t i = 0; fault.empty() && i < count; ++i) {
        const int64_t row = data_.row_of(samples ? samples[i] : i);
        const char* data = array.row_data(row, &buffer);
        const int64_t bad = first_bad<T>(data, 0, elements, good);
        if (bad < elements) {
          fault = describe(array, row * elements + bad, data + bad * static_cast<int64_t>(sizeof(T)), why);
        }
      }
    });
  }
  return fault;
}

std::string describe_samples(const int64_t* rows, int64_t count) {
  constexpr size_t kShown = 8;
  const std::span<const int64_t> all(rows, static_cast<size_t>(count));
  return "in the batch of samples " + first_few(all, kShown, [](int64_t row) { return std::to_string(row); });
}

}  // namespace onnx_train
