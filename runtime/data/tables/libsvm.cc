// Sparse rows as LIBSVM and SVMlight have them: a label, then INDEX:VALUE with ascending indices; what is left out is
// 0, and # begins a comment. Rows are kept as they are written, and filled with zeros when a batch needs them, so that
// a table of many features takes the memory of what it holds. https://www.csie.ntu.edu.tw/~cjlin/libsvm
//
// LIBSVM counts features from 1, some programs from 0, as an index of 0 shows. The model that is trained keeps which it
// is, since a file for tests may have no such index.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/class_names.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/tables/table.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {
namespace {

constexpr std::string_view kSpaces = " \t\r\f\v";

struct SparseRows {
  std::vector<double> labels;
  std::vector<int64_t> lines, ends;  // of each row: its line, and where its entries end
  std::vector<int32_t> indices;      // of each entry, as the file counts
  std::vector<double> values;
  int32_t least = INT32_MAX, most = -1;  // of the indices
};

class SparseReader {
 public:
  explicit SparseReader(const std::string& path) : path_(path) {}

  SparseRows read(std::string_view text) {
    for (line_ = 1; !text.empty(); ++line_) {
      std::string_view written = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(written.size() + 1, text.size()));
      row(written.substr(0, written.find('#')));
    }
    if (rows_.labels.empty()) fail_as(ErrorCode::kFile, path_, " holds no rows");
    return std::move(rows_);
  }

 private:
  [[noreturn]] void refuse(std::string_view field, const std::string& why) const {
    fail_as(ErrorCode::kTableField, path_, ", line ", line_, ": '", field.substr(0, 40), "' ", why);
  }

  static std::string_view next_field(std::string_view* line) {
    line->remove_prefix(std::min(line->find_first_not_of(kSpaces), line->size()));
    const std::string_view field = line->substr(0, line->find_first_of(kSpaces));
    line->remove_prefix(field.size());
    return field;
  }

  void row(std::string_view line) {
    std::string_view field = next_field(&line);
    if (field.empty()) return;
    const double label = number_in(field).value_or(NAN);
    if (std::isnan(label)) refuse(field, "is no label: a row is LABEL INDEX:VALUE INDEX:VALUE ...");
    rows_.labels.push_back(label);
    rows_.lines.push_back(line_);
    int32_t before = -1;
    while (!(field = next_field(&line)).empty()) entry(field, &before);
    rows_.ends.push_back(static_cast<int64_t>(rows_.values.size()));
  }

  void entry(std::string_view field, int32_t* before) {
    const size_t colon = field.find(':');
    int32_t index = -1;
    const char* const end = field.data() + std::min(colon, field.size());
    const auto [stop, fault] = std::from_chars(field.data(), end, index);
    const double value = colon == std::string_view::npos ? NAN : number_in(field.substr(colon + 1)).value_or(NAN);
    if (fault != std::errc() || stop != end || index < 0 || std::isnan(value)) refuse(field, "is not INDEX:VALUE");
    if (index <= *before) refuse(field, concat("comes after index ", *before, "; indices ascend"));
    *before = index;
    rows_.least = std::min(rows_.least, index);
    rows_.most = std::max(rows_.most, index);
    rows_.indices.push_back(index);
    rows_.values.push_back(value);
  }

  const std::string path_;
  SparseRows rows_;
  int64_t line_ = 1;
};

// The features, filled with zeros.
class SparseFeatures : public RowReader {
 public:
  SparseFeatures(std::string path, std::string identity, std::shared_ptr<const SparseRows> rows, int32_t first,
                 TensorSpec spec)
      : RowReader(std::move(spec)),
        path_(std::move(path)),
        identity_(std::move(identity)),
        rows_(std::move(rows)),
        first_(first) {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    if (spec().dtype == DType::kDouble) {
      fill(row, static_cast<double*>(to));
    } else {
      fill(row, static_cast<float*>(to));
    }
  }
  std::string describe(int64_t row) const override {
    return concat(path_, ", line ", rows_->lines[static_cast<size_t>(row)]);
  }
  std::string identity() const override { return concat(identity_, " from ", first_); }
  size_t memory() const override { return rows_->values.size() * 12 + rows_->labels.size() * 24; }
  bool is_quick() const override { return true; }

 private:
  template <typename T>
  void fill(int64_t row, T* to) const {
    std::fill_n(to, num_elements(spec().shape) / spec().shape[0], T{0});
    const auto at = static_cast<size_t>(row);
    const auto begin = static_cast<size_t>(row == 0 ? 0 : rows_->ends[at - 1]);
    for (size_t i = begin; i < static_cast<size_t>(rows_->ends[at]); ++i)
      to[rows_->indices[i] - first_] = static_cast<T>(rows_->values[i]);
  }

  const std::string path_, identity_;
  const std::shared_ptr<const SparseRows> rows_;
  const int32_t first_;
};

// 0 or 1: what the model has been trained with, else what the file shows.
int32_t first_index(const SparseRows& rows, const std::string& path, const ReadOptions& options) {
  const auto known = options.metadata.find(kFirstIndex);
  const int32_t shown = rows.least == 0 ? 0 : 1;
  if (known == options.metadata.end() || (known->second != "0" && known->second != "1")) return shown;
  const int32_t first = known->second == "0" ? 0 : 1;
  if (shown < first) fail_as(ErrorCode::kData, path, " has an index 0, and the model was trained on indices from 1");
  return first;
}

// The sizes of a sample: the model's, if it tells them, else as many features as there are.
Shape features_of(const InputSpec& spec, const SparseRows& rows, int32_t first, const std::string& path) {
  const auto found = static_cast<int64_t>(rows.most) + 1 - first;
  const std::optional<Shape> sizes = sizes_of_sample(spec);
  if (!sizes || sizes->empty()) return {std::max<int64_t>(found, 0)};
  if (found > num_elements(*sizes)) {
    fail_as(ErrorCode::kArrayMisfit, path, " has features up to index ", rows.most, ", counted from ", first,
            ", and the model expects '", spec.name, "' as ", to_string(spec.type), ", ", num_elements(*sizes),
            " in a sample");
  }
  return *sizes;
}

// Of a target of floats the labels as they are. Of classes, which count from 0: those that do not, such as -1 and 1,
// are numbered in ascending order, and the model keeps their names.
void add_labels(const SparseRows& rows, const std::string& path, const InputSpec& spec, const ReadOptions& options,
                DataArrays* data) {
  const auto size = static_cast<int64_t>(rows.labels.size());
  const auto odd = std::find_if_not(rows.labels.begin(), rows.labels.end(), is_whole);
  if (odd != rows.labels.end() || !is_integer(spec.type.dtype)) {
    Tensor numbers(DType::kDouble, {size});
    std::copy(rows.labels.begin(), rows.labels.end(), numbers.data<double>());
    data->arrays[spec.name] = numbers;
    return;
  }
  const std::set<double> found(rows.labels.begin(), rows.labels.end());
  std::vector<std::string> classes;
  if (const auto known = options.metadata.find(kClassNames);
      known != options.metadata.end() && options.metadata.count(kFirstIndex) > 0) {
    classes = classes_from_json(known->second);
  } else if (*found.begin() != 0) {
    for (const double label : found) classes.push_back(concat(static_cast<int64_t>(label)));
    data->notes.push_back(concat(path, ": labels are ", classes.front(), " to ", classes.back(), ", read as ",
                                 classes.size(), " classes in ascending order"));
  }
  Tensor labels(DType::kInt64, {size});
  for (int64_t i = 0; i < size; ++i) {
    const auto label = static_cast<int64_t>(rows.labels[static_cast<size_t>(i)]);
    const auto place = std::find(classes.begin(), classes.end(), concat(label));
    if (!classes.empty() && place == classes.end()) {
      fail_as(ErrorCode::kTableField, path, ", line ", rows.lines[static_cast<size_t>(i)], ": label ", label,
              " is none of the classes that the model knows");
    }
    labels.data<int64_t>()[i] = classes.empty() ? label : place - classes.begin();
  }
  if (!classes.empty()) data->metadata[kClassNames] = classes_to_json(classes);
  data->arrays[spec.name] = labels;
}

}  // namespace

DataArrays open_libsvm(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  const auto rows = std::make_shared<const SparseRows>(SparseReader(path).read(text));
  const int32_t first = first_index(*rows, path, options);
  DataArrays data;
  if (first == 0 && options.metadata.count(kFirstIndex) == 0)
    data.notes.push_back(concat(path, " has an index 0: its features count from 0, not from 1"));
  for (const InputSpec& spec : inputs) {
    if (spec.name == first_input(inputs)) {
      const Tensor bytes(DType::kUint8, {static_cast<int64_t>(text.size())}, text.data(), file);
      Shape shape = features_of(spec, *rows, first, path);
      shape.insert(shape.begin(), static_cast<int64_t>(rows->labels.size()));
      const DType dtype = spec.type.dtype == DType::kDouble ? DType::kDouble : DType::kFloat;
      data.arrays[spec.name] =
          std::make_shared<SparseFeatures>(path, fingerprint({{"rows", bytes}}), rows, first, TensorSpec{dtype, shape});
    }
    if (spec.name == first_label(inputs)) add_labels(*rows, path, spec, options, &data);
  }
  data.metadata[kFirstIndex] = std::to_string(first);
  return data;
}

}  // namespace onnx_train
