#include "runtime/data/loading/data_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "kernels/device.h"
#include "kernels/dispatch.h"
#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/ir/load_element.h"
#include "onnx_passes/loss/loss.h"
#include "runtime/data/texts/label_shift.h"

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

// Probabilities of a softmax may be above 1 by what is rounded, in float16, too.
template <typename T>
struct IsProbability {
  bool operator()(T value) const {
    constexpr float kRounding = 1e-3f;
    const auto number = static_cast<float>(value);
    return (number >= -kRounding) & (number <= 1 + kRounding);
  }
};

// Calls f(T{}) for a numeric type of files.
template <typename F>
void dispatch_stored(DType dtype, F&& f) {
  if (dtype == DType::kFloat16) return f(Float16{});
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  if (is_numeric(dtype)) dispatch_numeric(dtype, f);
}

// Calls `look(tag, good, why, range)` with the array's element type for each test that the elements must pass; `range`
// is that of an index, or null. `loss` takes the array for probabilities; null: none does.
template <typename Look>
void for_each_test(const Dataset::Array& array, const std::vector<IndexRange>* ranges, const std::string* loss,
                   Look&& look) {
  const DType from = array.rows.dtype();
  if (is_float(from)) {
    const bool is_double = array.dtype == DType::kDouble;
    const std::string why = is_double ? "every number must be finite" : "every number must be finite in float32";
    dispatch_stored(from, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (std::is_same_v<T, double>) {
        if (is_double) return look(tag, IsFinite<T, double>(), why, nullptr);
      }
      if constexpr (!std::is_integral_v<T>) look(tag, IsFinite<T, float>(), why, nullptr);
    });
  }
  if (loss) {
    const std::string why = concat(*loss, " takes 0 to 1");
    dispatch_stored(from, [&](auto tag) { look(tag, IsProbability<decltype(tag)>(), why, nullptr); });
  }
  if (!ranges || !is_integer(from)) return;
  for (const IndexRange& range : *ranges) {
    std::string why = concat(range.reader, " takes ", range.least, " to ", range.most);
    if (range.has_other) why += concat(", and ignores ", range.other);
    dispatch_numeric(from, [&](auto tag) { look(tag, InRange<decltype(tag)>{range}, why, &range); });
  }
}

// The index in its array, as "[17, 3]", of an element that is counted from the first of the first sample.
std::string place(const Dataset::Array& array, int64_t element) {
  const auto axis = static_cast<std::ptrdiff_t>(array.per_sample && !array.rows.reader() ? array.axis : 0);
  Shape index = array.rows.spec().shape;
  if (!index.empty()) std::rotate(index.begin(), index.begin() + axis, index.begin() + axis + 1);
  for (size_t i = index.size(); i-- > 0;) {
    const int64_t size = index[i];
    index[i] = element % size;
    element /= size;
  }
  if (!index.empty()) std::rotate(index.begin(), index.begin() + 1, index.begin() + axis + 1);
  std::string text;
  for (const int64_t i : index) text += concat(text.empty() ? "" : ", ", i);
  return "[" + text + "]";
}

// Describes element `element` of the array, whose bytes are at `at`.
std::string describe(const Dataset::Array& array, int64_t element, const char* at, const std::string& why) {
  const int64_t row = std::max<int64_t>(num_elements(array.row), 1);
  const DType type = array.rows.dtype();
  // A copy is aligned.
  Tensor value(type, {1});
  std::memcpy(value.data(), at, size_of(type));
  std::string number = concat(value.at(0));
  if (is_integer(type)) dispatch_integer(type, [&](auto tag) { number = concat(+*value.data<decltype(tag)>()); });
  const RowReader* const reader = array.rows.reader();
  if (const std::string where = reader ? reader->place(element / row, element % row) : ""; !where.empty())
    return concat(
        "token ", number, " ", where, ", for '", array.name, "'; ", why,
        ": are these tokens of another tokenizer (--resize-vocabulary makes room for new ones), or of another "
        "--token-type?");
  return concat("'", array.name, "' holds ", number,
                array.per_sample ? concat(array.is_pair ? " in pair " : " in sample ", element / row) : "",
                reader ? concat(", ", reader->describe(element / row)) : "", " (element ", place(array, element), "); ",
                why);
}

// The sizes of the data: of arrays that are cut into batches all but that of the samples.
std::map<std::string, Dims> sizes_of(const Dataset& data) {
  std::map<std::string, Dims> sizes;
  for (const Dataset::Array& array : data.arrays()) {
    Dims& dims = sizes[array.name];
    dims.assign(array.row.begin() + (array.is_pair ? 1 : 0), array.row.end());
    if (array.per_sample)
      dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(std::min(array.axis, dims.size())), Dim());
  }
  return sizes;
}

// look_at(i, buffer) of the first i below `count` for which it is not "". Rows that take time are looked at on all
// threads.
template <typename LookAt>
std::string first_of_rows(int64_t count, bool take_time, const LookAt& look_at) {
  std::atomic<int64_t> next{0}, found{count};
  std::mutex mutex;
  std::string text;
  std::exception_ptr error;
  const auto work = [&] {
    Tensor buffer;
    for (int64_t i = 0; (i = next++) < found;) {
      std::string fault;
      std::exception_ptr thrown;
      try {
        fault = look_at(i, &buffer);
      } catch (...) {
        thrown = std::current_exception();
      }
      if (fault.empty() && !thrown) continue;
      const std::lock_guard lock(mutex);
      if (i >= found) continue;
      found = i;
      text = std::move(fault);
      error = thrown;
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; take_time && i < num_threads(); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  if (error) std::rethrow_exception(error);
  return text;
}

// The different values of an array, of millions of elements; none if there are many.
std::set<double> values_of(const Dataset& data, const Dataset::Array& array) {
  constexpr size_t kFew = 1024;
  constexpr int64_t kMostElements = int64_t{1} << 26;
  std::set<double> values;
  const int64_t elements = num_elements(array.row), rows = array.per_sample ? data.num_samples() : 1;
  if (elements == 0 || rows > kMostElements / elements) return {};
  Tensor buffer;
  for (int64_t i = 0; i < rows && values.size() <= kFew; ++i) {
    const char* row = array.row_data(array.per_sample ? data.row_of(i) : 0, &buffer);
    const auto collect = [&](auto tag) {
      for (int64_t k = 0; k < elements && values.size() <= kFew; ++k)
        values.insert(static_cast<double>(static_cast<float>(load_element<decltype(tag)>(row, k))));
    };
    dispatch_stored(array.rows.dtype(), collect);
  }
  return values.size() <= kFew ? values : std::set<double>();
}

}  // namespace

// The first output that can be scores.
std::string DataCheck::first_output(const Model& model) {
  for (const Value* output : model.graph->outputs()) {
    if (is_float(output->dtype())) return output->name();
  }
  return "OUTPUT";
}

DataCheck::DataCheck(const Dataset* data, const Model& model, const EntryName& entry)
    : data_(*data),
      ranges_(index_ranges(model, entry, sizes_of(*data))),
      probabilities_(entry == Entry::kPredict ? std::map<std::string, std::string>() : probability_inputs(model)),
      copied_labels_(copied_labels(*data, model, entry)),
      output_(first_output(model)) {}

std::string DataCheck::first_fault() const {
  const std::string fault = find(nullptr, data_.num_samples()).text;
  return fault.empty() ? copied_labels_ : fault;
}

std::string DataCheck::first_fault(const int64_t* samples, int64_t count) const { return find(samples, count).text; }

std::string DataCheck::refusal(const std::string& option) const {
  const Fault fault = find(nullptr, data_.num_samples());
  if (!fault.array && copied_labels_.empty()) return "";
  const std::string nevertheless = concat(" (", option, " leaves this check out)");
  if (!fault.array) return copied_labels_ + nevertheless;
  return fault.text + way_out(fault) + (fault.range ? "" : nevertheless);
}

DataCheck::Fault DataCheck::find(const int64_t* samples, int64_t count) const {
  Fault fault;
  const bool is_all = !samples && !data_.is_selection();
  for (const Dataset::Array& array : data_.arrays()) {
    const RowReader* const reader = array.rows.reader();
    if (!samples && reader && !reader->is_checked()) continue;  // a step finds what is wrong with them
    const auto ranges = ranges_.find(array.name);
    const auto loss = probabilities_.find(array.name);
    const bool is_whole = !array.per_sample || (is_all && !reader && array.axis == 0);
    const auto test = [&](auto tag, auto good, const std::string& why, const IndexRange* range) {
      using T = decltype(tag);
      if (fault.array) return;
      if (is_whole) {
        const Tensor& stored = array.rows.stored();
        const auto* data = static_cast<const char*>(stored.data());
        const int64_t end = stored.size(), bad = first_bad_of_many<T>(data, 0, end, good);
        if (bad < end) fault = {describe(array, bad, data + bad * static_cast<int64_t>(sizeof(T)), why), &array, range};
        return;
      }
      const int64_t elements = num_elements(array.row);
      const auto look_at = [&](int64_t i, Tensor* buffer) -> std::string {
        const int64_t row = data_.row_of(samples ? samples[i] : i);
        const char* data = array.row_data(row, buffer);
        const int64_t bad = first_bad<T>(data, 0, elements, good);
        if (bad == elements) return "";
        return describe(array, row * elements + bad, data + bad * static_cast<int64_t>(sizeof(T)), why);
      };
      const std::string text = first_of_rows(count, !array.rows.is_quick(), look_at);
      if (!text.empty()) fault = {text, &array, range};
    };
    for_each_test(array, ranges == ranges_.end() ? nullptr : &ranges->second,
                  loss == probabilities_.end() ? nullptr : &loss->second, test);
  }
  return fault;
}

// What the whole data say about the cause of a fault.
std::string DataCheck::way_out(const Fault& fault) const {
  const Dataset::Array& array = *fault.array;
  if (!fault.range && probabilities_.count(array.name) == 0) return "";
  const std::set<double> values = values_of(data_, array);
  if (values.empty()) return "";
  const double least = *values.begin(), most = *values.rbegin();
  if (values.size() == 2 && least == 0 && most > 1) {
    const std::string option = array.rows.reader() ? array.rows.reader()->values_option() : "";
    const std::string all = concat("; it holds 0 and ", most, " alone: ");
    return all + (option.empty() ? "make them 0 and 1" : concat(option, " 0,", most, " makes them 0 and 1"));
  }
  if (!fault.range) return "; bring it to 0 to 1, or take another loss: mse takes any numbers";
  if (fault.range->least != 0) return "";
  const auto classes = static_cast<double>(fault.range->most) + 1;
  if (least == 1 && most == classes) return "; the labels begin at 1, classes at 0: subtract 1";
  // More classes than the model has: the data name them, or hold each number up to the largest.
  const size_t names = data_.class_names().size();
  const bool is_complete = least == 0 && static_cast<double>(values.size()) == most + 1;
  const size_t found = std::max(names, is_complete ? values.size() : 0);
  if (least >= 0 && most < static_cast<double>(found)) {
    const std::string sentence = concat("; the model tells ", classes, " classes apart, and the data have ", found,
                                        ": build --head ", output_, "=", found, " gives it a last layer for them");
    const bool may_be_ignored = names == 0 && most == classes && fault.range->has_other;
    return sentence + (may_be_ignored ? concat("; if such positions do not count, ignore_index=", most) : "");
  }
  const auto outside = std::count_if(values.begin(), values.end(), [&](double x) { return x < 0 || x >= classes; });
  if (!fault.range->has_other || outside != 1) return "";
  return concat("; correct it or, if such positions do not count, build with ignore_index=", least < 0 ? least : most);
}

std::string describe_samples(const int64_t* rows, int64_t count) {
  constexpr size_t kShown = 8;
  const std::span<const int64_t> all(rows, static_cast<size_t>(count));
  return "in the batch of samples " + first_few(all, kShown, [](int64_t row) { return std::to_string(row); });
}

}  // namespace onnx_train
