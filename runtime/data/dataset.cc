#include "runtime/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/pairs.h"
#include "onnx_passes/model/table_metadata.h"
#include "onnx_passes/passes.h"
#include "runtime/data/class_names.h"
#include "runtime/data/random.h"
#include "runtime/data/sample_axes.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {

namespace {

// Inputs with the batch of the labels have two rows for each pair.
void mark_pairs(std::vector<InputSpec>* specs, const std::string& labels) {
  const auto has_axes = [](const InputSpec& spec) { return spec.type.has_rank() && spec.type.rank() > 0; };
  const auto found = std::ranges::find(*specs, labels, &InputSpec::name);
  if (found == specs->end() || !has_axes(*found)) return;
  const Dim batch = found->type.dims->front();
  for (InputSpec& spec : *specs) {
    if (has_axes(spec) && spec.type.dims->front().same(batch)) spec.rows = kRowsOfPair;
  }
}

}  // namespace

std::vector<InputSpec> entry_inputs(const Model& model, const EntryName& entry) {
  return entry_inputs(model, entry, flatten(model, entry));
}

std::vector<InputSpec> entry_inputs(const Model& model, const EntryName& entry, const Model& flat) {
  const std::vector<std::string> states = state_of(model, entry);
  const std::set<std::string> is_state(states.begin(), states.end());
  std::vector<InputSpec> specs;
  for (const Value* input : flat.graph->inputs()) {
    if (is_state.count(input->name())) continue;
    const Value* original = model.graph->find(input->name());
    const bool from_loss = !original || !model.graph->is_input(original);
    specs.push_back({input->name(), input->type(), from_loss, input->is_initializer(),
                     input->role() ? input->role()->name : "", from_loss ? "" : bytes_expected(*original)});
  }
  std::stable_partition(specs.begin(), specs.end(), [](const InputSpec& spec) { return !spec.from_loss; });
  const std::string batch = batch_symbol(model, specs);
  for (InputSpec& spec : specs) spec.sample_axis = sample_axis(spec.type, batch);
  if (entry != Entry::kPredict && !model.metadata(kPairs).empty()) mark_pairs(&specs, model.metadata(kPairs));
  return specs;
}

namespace {

std::string names_of(const DataArrays& data) {
  std::string names;
  for (const auto& [name, rows] : data.arrays) names += concat(names.empty() ? "" : ", ", name);
  return names.empty() ? "nothing" : names;
}

std::string describe(const TensorSpec& spec) { return name(spec.dtype) + to_string(spec.shape); }

// Labels with an axis of classes where the loss takes the number of a class.
std::string advice_for_labels(const InputSpec& spec, const TensorSpec& found) {
  const bool has_classes = spec.type.has_rank() && static_cast<int64_t>(found.shape.size()) == spec.type.rank() + 1;
  if (!spec.from_loss || !is_integer(spec.type.dtype) || !has_classes) return "";
  return "; one-hot rows and probabilities of classes are for a loss such as --loss "
         "'cross_entropy(probabilities=true)', or store the number of each class (argmax)";
}

[[noreturn]] void fail_mismatch(const InputSpec& spec, const TensorSpec& found, const std::string& why) {
  fail_as(ErrorCode::kArrayMisfit, "data '", spec.name, "': the model expects ", to_string(spec.type),
          ", the data holds ", describe(found), why.empty() ? advice_for_labels(spec, found) : why);
}

// The axis of the samples in an array; a reader's are its rows.
size_t axis_in_data(const InputSpec& spec, const Rows& rows) { return rows.reader() ? 0 : spec.sample_axis; }

// The array whose sample axis counts the samples; null if all arrays are scalars.
const InputSpec* sample_key(const DataArrays& data, const std::vector<InputSpec>& inputs) {
  const auto counts = [&](const InputSpec& spec) {
    const Rows* rows = data.find(spec.name);
    return rows && rows->spec().shape.size() > axis_in_data(spec, *rows);
  };
  for (bool from_loss : {true, false}) {
    for (const InputSpec& spec : inputs) {
      if (spec.from_loss == from_loss && !spec.has_default && counts(spec)) return &spec;
    }
  }
  return nullptr;
}

bool converts(DType from, DType to) {
  const bool exact_source = is_integer(from) || from == DType::kBool;
  if (from == to || is_float(to)) return is_float(from) || exact_source;
  return is_integer(to) && exact_source;
}

// The smallest and largest value of an integer type, as far as a double can represent them.
std::pair<double, double> range_of(DType dtype) {
  const int bits = static_cast<int>(size_of(dtype)) * 8;
  const bool is_signed =
      dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 || dtype == DType::kInt64;
  const double top = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  return {is_signed ? -top : 0.0, top};
}

// Data need not be aligned: they may be a view of a file.
Tensor aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data()) % 16 == 0 ? tensor : tensor.clone();
}

void check_type(const InputSpec& spec, const Rows& rows) {
  const TensorSpec data = rows.spec();
  const DType from = data.dtype, to = spec.type.dtype;
  if (!converts(from, to)) {
    fail_mismatch(spec, data,
                  is_float(from) && is_integer(to) && advice_for_labels(spec, data).empty()
                      ? "; floats are not rounded to integers, store integers"
                      : "");
  }
  if (from == to || !is_integer(from) || !is_integer(to)) return;
  const auto [low, high] = range_of(to);
  const auto [from_low, from_high] = range_of(from);
  if (from_low >= low && from_high <= high) return;
  const Tensor values = aligned(rows.read_all());
  for (int64_t i = 0; i < values.size(); ++i) {
    const double value = values.at(i);
    if (value < low || value >= high) fail_mismatch(spec, data, concat("; element ", i, " is ", value));
  }
}

Shape without_ones(const Shape& shape) {
  Shape rest;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest), [](int64_t size) { return size != 1; });
  return rest;
}

// Whether `found` matches the sizes of `expected`; binds symbols at their first occurrence.
bool fits(const Dims& expected, const Shape& found, std::map<std::string, int64_t>* symbols) {
  if (expected.size() != found.size()) return false;
  for (size_t i = 0; i < found.size(); ++i) {
    if (expected[i].known() && expected[i].value() != found[i]) return false;
    if (expected[i].symbol().empty()) continue;
    if (symbols->emplace(expected[i].symbol(), found[i]).first->second != found[i]) return false;
  }
  return true;
}

// The shape in which the model reads a row: unchanged; or with dimensions of 1 added or removed; or flat if the model
// expects flat rows. No other reshape, so that channels-last images are not read as channels-first ones.
Shape row_shape(const InputSpec& spec, const Dims& expected, const Shape& found, const TensorSpec& data,
                std::map<std::string, int64_t>* symbols) {
  if (fits(expected, found, symbols)) return found;
  const bool is_static = std::all_of(expected.begin(), expected.end(), [](const Dim& d) { return d.known(); });
  if (is_static) {
    Shape wanted;
    for (const Dim& d : expected) wanted.push_back(d.value());
    const bool flat = wanted.size() == 1 && wanted[0] == num_elements(found);
    if (flat || without_ones(wanted) == without_ones(found)) return wanted;
  }
  fail_mismatch(spec, data, "");
}

// How many samples the array has, whose axis of samples counts rows.
int64_t samples_of(const InputSpec& spec, const Rows& rows) {
  const int64_t count = rows.spec().shape[axis_in_data(spec, rows)];
  if (count % spec.rows == 0) return count / spec.rows;
  fail_as(ErrorCode::kSampleCounts, "data '", spec.name, "' has ", count,
          " rows; the loss compares pairs of them, chosen and rejected, one after the other");
}

int64_t fixed_batch_of(const InputSpec& spec, int64_t rows) {
  if (rows % spec.rows == 0) return rows / spec.rows;
  fail_as(ErrorCode::kBatchSize, "'", spec.name, "' takes batches of ", rows,
          " rows, and the loss compares pairs of them: build the model with --batch dynamic");
}

// [2 n, ...] as [n, 2, ...]; rows that are made, such as positions, are made now.
Rows in_pairs(const InputSpec& spec, const Rows& rows, int64_t samples) {
  if (spec.sample_axis > 0)
    fail_as(ErrorCode::kData, "data '", spec.name, "': the rows of pairs are along the first axis");
  const Tensor stored = rows.read_all();
  Shape shape = stored.shape();
  shape[0] = spec.rows;
  shape.insert(shape.begin(), samples);
  return stored.reshaped(shape);
}

}  // namespace

namespace {

// Whether some arrays are of tokens that may be filled up, and the model takes any number of these in all of them.
bool takes_any_length(const DataArrays& data, const std::vector<InputSpec>& inputs) {
  bool has_tokens = false;
  for (const InputSpec& spec : inputs) {
    const Rows* rows = data.find(spec.name);
    if (!rows || !rows->reader()) continue;
    for (const size_t axis : rows->reader()->token_axes()) {
      has_tokens = true;
      if (spec.type.has_rank() && (*spec.type.dims)[axis + 1].known()) return false;
    }
  }
  return has_tokens;
}

}  // namespace

Dataset::Dataset(const DataArrays& data, const std::vector<InputSpec>& inputs, const Preprocess& preprocess)
    : preprocess_(preprocess), metadata_(data.metadata), parts_(data.parts) {
  for (const InputSpec& spec : inputs) {
    if (!spec.has_default && !data.find(spec.name)) {
      fail_as(ErrorCode::kArrayMissing, "the data has no '", spec.name, "', which the model expects as ",
              to_string(spec.type), "; it holds ", names_of(data));
    }
  }
  shortens_ = takes_any_length(data, inputs);
  const InputSpec* key = sample_key(data, inputs);
  const Rows* keyed = key ? data.find(key->name) : nullptr;
  count_.samples = keyed ? samples_of(*key, *keyed) : 1;
  if (count_.samples == 0)
    fail_as(ErrorCode::kData, "the data is empty: '", key->name, "' is ", describe(keyed->spec()));
  const auto batch_of = [](const InputSpec& spec) {
    return spec.type.has_rank() && spec.type.rank() > 0 ? (*spec.type.dims)[spec.sample_axis] : Dim();
  };
  std::map<std::string, int64_t> symbols;
  for (const InputSpec& spec : inputs) {
    const Rows* rows = data.find(spec.name);
    if (!rows) continue;
    const TensorSpec found = rows->spec();
    check_type(spec, *rows);
    const size_t axis = axis_in_data(spec, *rows);
    const bool has_axis = key && found.shape.size() > axis;
    const bool per_sample = has_axis && found.shape[axis] == count_.samples * spec.rows;
    const bool is_pair = per_sample && spec.rows > 1;
    if (has_axis && !per_sample && batch_of(spec).same(batch_of(*key)) && !batch_of(spec).known()) {
      fail_as(ErrorCode::kSampleCounts, "data '", spec.name, "' has ", found.shape[axis],
              spec.rows > 1 ? " rows" : " samples", axis > 0 ? concat(" along its axis ", axis) : "", ", '", key->name,
              "' has ", count_.samples * key->rows);
    }
    Shape row = found.shape;
    if (per_sample) row.erase(row.begin() + static_cast<std::ptrdiff_t>(axis));
    if (spec.type.has_rank()) {
      if (per_sample && spec.type.rank() <= static_cast<int64_t>(spec.sample_axis)) fail_mismatch(spec, found, "");
      Dims expected = *spec.type.dims;
      if (per_sample) expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(spec.sample_axis));
      row = row_shape(spec, expected, row, found, &symbols);
    }
    if (per_sample && batch_of(spec).known()) count_.fixed_batch = fixed_batch_of(spec, batch_of(spec).value());
    const bool is_class = spec.from_loss && per_sample && is_integer(found.dtype) && num_elements(row) == 1;
    if (is_class && classes_.empty()) classes_ = spec.name;
    Rows stored = *rows;
    if (is_pair) {
      row.insert(row.begin(), spec.rows);
      stored = in_pairs(spec, *rows, count_.samples);
    }
    arrays_.push_back({spec.name, std::move(stored), spec.type.dtype, std::move(row), per_sample, spec.sample_axis,
                       rows->reader() ? Rescaling() : preprocess_.rescaling(spec.name), is_pair});
  }
}

const Dataset::Array* Dataset::find(const std::string& name) const {
  for (const Array& array : arrays_) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

Dataset Dataset::select(const std::vector<int64_t>& rows) const {
  Dataset selection = *this;
  auto selected = std::make_shared<std::vector<int64_t>>();
  for (const int64_t row : rows) selected->push_back(row_of(row));
  selection.count_.samples = static_cast<int64_t>(rows.size());
  selection.selected_ = std::move(selected);
  selection.fingerprint_.clear();
  return selection;
}

const char* Dataset::Array::row_data(int64_t index, Tensor* buffer) const {
  const DType stored = rows.dtype();
  const size_t bytes = static_cast<size_t>(num_elements(row)) * size_of(stored);
  const bool is_apart = per_sample && axis > 0;
  if (!rows.reader() && !is_apart) return rows.stored().data<char>() + static_cast<size_t>(index) * bytes;
  if (buffer->empty() || buffer->dtype() != stored || buffer->shape() != row) *buffer = Tensor(stored, row);
  if (rows.reader()) {
    rows.reader()->read(index, nullptr, buffer->data());
  } else {
    copy_row(index, buffer->data());
  }
  return buffer->data<char>();
}

// A row that is apart in the file: a piece for each place in the axes before that of the samples.
void Dataset::Array::copy_row(int64_t index, void* to) const {
  const Tensor& data = rows.stored();
  const Shape& shape = data.shape();
  const int64_t pieces = num_elements(Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)));
  const size_t piece = data.bytes() / static_cast<size_t>(std::max<int64_t>(pieces * shape[axis], 1));
  const char* from = static_cast<const char*>(data.data()) + static_cast<size_t>(index) * piece;
  for (int64_t i = 0; i < pieces; ++i, from += piece * static_cast<size_t>(shape[axis]))
    std::memcpy(static_cast<char*>(to) + static_cast<size_t>(i) * piece, from, piece);
}

Shape Dataset::Array::batch_shape(int64_t samples) const {
  Shape shape = row;
  if (is_pair) {
    shape[0] *= samples;
  } else if (per_sample) {
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(std::min(axis, shape.size())), samples);
  }
  return shape;
}

bool Dataset::makes_rows() const {
  return std::any_of(arrays_.begin(), arrays_.end(), [](const Array& array) { return !array.rows.is_quick(); });
}

std::string Dataset::origin(int64_t row) const {
  std::string text;
  for (const Array& array : arrays_) {
    if (array.rows.reader() && text.empty()) text = array.rows.reader()->describe(row);
  }
  return text;
}

std::vector<std::string> Dataset::class_names() const {
  const auto found = metadata_.find(kClassNames);
  return found == metadata_.end() ? std::vector<std::string>() : classes_from_json(found->second);
}

const std::string& Dataset::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  std::vector<NamedTensor> tensors;
  const auto add_text = [&](const std::string& name, const std::string& text) {
    tensors.push_back({name, Tensor::of<uint8_t>({static_cast<int64_t>(text.size())}, {text.begin(), text.end()})});
  };
  for (const Array& array : arrays_) {
    if (array.rows.reader()) {
      add_text(array.name, array.rows.reader()->identity());
    } else {
      tensors.push_back({array.name, array.rows.stored()});
    }
  }
  if (selected_) tensors.push_back({"", Tensor::ints(*selected_)});
  return fingerprint_ = onnx_train::fingerprint(tensors);
}

void Dataset::gather(const int64_t* samples, int64_t count, TensorMap* batch, const AugmentKey* key) const {
  for (const Array& array : arrays_) {
    const bool is_first = !array.per_sample || array.axis == 0;
    Tensor samples_first;  // rows after each other, before their axis gets its place
    Tensor& out = is_first ? (*batch)[array.name] : samples_first;
    Shape shape = is_first ? array.batch_shape(count) : array.row;
    if (!is_first) shape.insert(shape.begin(), count);
    const bool ready = !out.empty() && out.shape() == shape && out.dtype() == array.dtype;
    if (ready && !array.per_sample) continue;
    const DType stored = array.rows.dtype();
    const bool direct = stored == array.dtype;
    Tensor raw = direct && ready ? out : Tensor(stored, shape);
    auto* to = static_cast<char*>(raw.data());
    if (array.per_sample) {
      const size_t bytes = static_cast<size_t>(num_elements(array.row)) * size_of(stored);
      for (int64_t i = 0; i < count; ++i, to += bytes) {
        const int64_t row = row_of(samples[i]);
        if (array.rows.reader()) {
          array.rows.reader()->read(row, key, to);
        } else if (!is_first) {
          array.copy_row(row, to);
        } else {
          std::memcpy(to, array.row_data(row, nullptr), bytes);
        }
      }
    } else if (raw.bytes() > 0) {
      std::memcpy(to, array.rows.stored().data(), raw.bytes());
    }
    out = direct ? raw : raw.cast(array.dtype);
    if (!array.values.is_identity()) apply_rescaling(array.name, array.values, array.row, &out);
    if (!is_first) (*batch)[array.name] = with_axis_at(out, 0, std::min(array.axis, array.row.size()));
  }
}

int64_t Dataset::filled(int64_t sample) const {
  const auto found = std::ranges::find_if(
      arrays_, [](const Array& array) { return array.rows.reader() && !array.rows.reader()->token_axes().empty(); });
  return found == arrays_.end() ? -1 : found->rows.reader()->filled(row_of(sample));
}

void Dataset::shorten(int64_t length, TensorMap* batch) const {
  for (const Array& array : arrays_) {
    const RowReader* reader = array.rows.reader();
    if (!reader) continue;
    Tensor& tensor = batch->at(array.name);
    for (const size_t axis : reader->token_axes()) tensor = first_along(tensor, axis + 1, length);
  }
}

std::vector<int64_t> sample_order(int64_t n, uint64_t seed, int64_t epoch, bool shuffle) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  SplitMix64 seeds(seed);
  SplitMix64 random(seeds.next() + static_cast<uint64_t>(epoch) * 0xd1342543de82ef95ULL);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

std::string first_input(const std::vector<InputSpec>& inputs) {
  for (const InputSpec& spec : inputs) {
    if (!spec.from_loss && !spec.has_default) return spec.name;
  }
  return "";
}

std::string first_label(const std::vector<InputSpec>& inputs) {
  for (const InputSpec& spec : inputs) {
    if (spec.from_loss && !spec.has_default) return spec.name;
  }
  return "";
}

}  // namespace onnx_train
