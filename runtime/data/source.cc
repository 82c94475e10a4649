#include "runtime/data/source.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/npy.h"
#include "runtime/data/readers.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

class ArraySource : public DataSource {
 public:
  ArraySource(std::string path, TensorMap arrays) : path_(std::move(path)), arrays_(std::move(arrays)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : arrays_) names.push_back(name);
    return names;
  }
  bool contains(const std::string& name) const override { return arrays_.count(name) > 0; }
  Tensor read(const std::string& name) const override {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) fail_as(ErrorCode::kFile, path_, " has no array '", name, "'");
    return found->second;
  }

 private:
  std::string path_;
  TensorMap arrays_;
};

class PictureSource : public DataSource {
 public:
  explicit PictureSource(std::shared_ptr<const PictureFiles> files) : files_(std::move(files)) {}
  std::vector<std::string> names() const override { return {}; }
  bool contains(const std::string&) const override { return false; }
  Tensor read(const std::string& name) const override {
    fail_as(ErrorCode::kFile, files_->root, " holds pictures, no array '", name, "'");
  }
  std::shared_ptr<const PictureFiles> pictures() const override { return files_; }

 private:
  const std::shared_ptr<const PictureFiles> files_;
};

// The files of a folder whose names satisfy `wanted`, in alphabetical order.
template <typename Wanted>
std::vector<std::string> files_of(const std::string& folder, Wanted&& wanted) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (wanted(it->path().filename().string())) files.push_back(it->path().string());
  }
  if (error) fail_as(ErrorCode::kFile, "cannot read the folder ", folder, ": ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_starting(const std::string& folder, const std::string& prefix) {
  return files_of(folder, [&](const std::string& name) { return name.starts_with(prefix); });
}

std::unique_ptr<DataSource> open_folder(const std::string& folder, const std::vector<InputSpec>& inputs,
                                        DataRole role) {
  const bool train = role == DataRole::kTrain;
  const std::string set = train ? "train" : "t10k";
  const auto images = files_starting(folder, set + "-images"), labels = files_starting(folder, set + "-labels");
  if (!images.empty() && !labels.empty()) return open_idx(images[0], labels[0], inputs);
  const auto batches = files_starting(folder, train ? "data_batch_" : "test_batch");
  if (!batches.empty()) return open_cifar10(batches, inputs);
  const bool has_arrays = !files_of(folder, [](const std::string& name) { return name.ends_with(".npy"); }).empty();
  const auto pictures = has_arrays ? nullptr : find_pictures(folder, train);
  return pictures ? std::make_unique<PictureSource>(pictures) : open_npy_folder(folder);
}

}  // namespace

std::unique_ptr<DataSource> make_source(const std::string& path, TensorMap arrays) {
  return std::make_unique<ArraySource>(path, std::move(arrays));
}

std::unique_ptr<DataSource> open_npy_folder(const std::string& folder) {
  TensorMap arrays;
  for (const std::string& path : files_of(folder, [](const std::string& name) { return name.ends_with(".npy"); })) {
    const auto file = MappedFile::open(path);
    arrays[fs::path(path).stem().string()] = parse_npy(file->data(), file->size(), file, path);
  }
  if (arrays.empty()) {
    const std::vector<std::string> files = files_of(folder, [](const std::string&) { return true; });
    std::string found;
    for (size_t i = 0; i < std::min<size_t>(files.size(), 3); ++i) {
      found += concat(i == 0 ? "" : ", ", fs::path(files[i]).filename().string());
    }
    if (files.size() > 3) found += ", ...";
    fail_as(
        ErrorCode::kFile, "the folder ", folder, " holds ", files.empty() ? "nothing" : found,
        ", but no *.npy, no train-images* with train-labels* (MNIST; t10k-* to evaluate), no data_batch_* (CIFAR-10; ",
        "test_batch* to evaluate), no pictures and no folders of them; ", kFormats);
  }
  return make_source(folder, std::move(arrays));
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

std::unique_ptr<DataSource> open_data(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_folder(path, inputs, role);
  if (const size_t comma = path.find(','); comma != std::string::npos && !fs::exists(path, error)) {
    return open_idx(path.substr(0, comma), path.substr(comma + 1), inputs);
  }
  if (!fs::exists(path, error)) fail_as(ErrorCode::kFile, "there is no data at ", path);
  const auto ends = [&](const char* suffix) { return path.ends_with(suffix); };
  if (ends(".npz")) return open_npz(path);
  if (is_picture_name(path)) return std::make_unique<PictureSource>(one_picture(path));
  if (ends(".csv")) {
    const auto pictures = read_picture_table(path);
    return pictures ? std::make_unique<PictureSource>(pictures) : open_csv(path, inputs);
  }
  if (ends(".bin")) return open_cifar10({path}, inputs);
  if (path.find("ubyte") != std::string::npos || path.find("idx") != std::string::npos) {
    return open_idx(path, "", inputs);
  }
  fail_as(ErrorCode::kFile, "the kind of ", path, " is not known by its name; ", kFormats);
}

namespace {

// The arrays that `inputs` need. `others` may be in the file, too.
DataArrays read_needed(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role,
                       const std::vector<InputSpec>& others = {}) {
  std::vector<InputSpec> known = inputs;
  known.insert(known.end(), others.begin(), others.end());
  const std::unique_ptr<DataSource> source = open_data(path, known, role);
  if (const auto pictures = source->pictures()) {
    if (pictures->files.empty()) fail_as(ErrorCode::kData, path, " holds no pictures");
    return {{}, pictures};
  }
  TensorMap arrays;
  std::string found;
  for (const std::string& name : source->names()) found += concat(found.empty() ? "" : ", ", name);
  for (const InputSpec& spec : inputs) {
    if (source->contains(spec.name)) {
      arrays[spec.name] = source->read(spec.name);
    } else if (!spec.has_default) {
      fail_as(ErrorCode::kData, path, " has no '", spec.name, "', which the model expects as ", to_string(spec.type),
              "; it holds ", found.empty() ? "nothing" : found);
    }
  }
  return {std::move(arrays), nullptr};
}

}  // namespace

DataArrays read_arrays(const std::string& path, const Model& model, const std::string& entry,
                       const std::vector<InputSpec>& inputs) {
  // For a prediction a table may hold targets: they are not among the columns that are left for the first input.
  std::vector<InputSpec> others;
  if (entry == "predict" && model.find_entry_point("evaluate")) others = entry_inputs(model, "evaluate");
  for (InputSpec& spec : others) spec.has_default = true;
  const bool tests = entry == "evaluate" || entry == "predict";
  return read_needed(path, inputs, tests ? DataRole::kEvaluate : DataRole::kTrain, others);
}

TensorMap read_arrays(const std::string& path) {
  const std::unique_ptr<DataSource> source = open_data(path, {});
  if (source->pictures()) fail_as(ErrorCode::kUsage, path, " holds pictures, which are read when a model needs them");
  TensorMap arrays;
  for (const std::string& name : source->names()) arrays[name] = source->read(name);
  if (arrays.empty()) {
    fail_as(ErrorCode::kUsage, path, " names no arrays: they get the names of a model's inputs; say which model");
  }
  return arrays;
}

Dataset make_dataset(DataArrays data, const std::vector<InputSpec>& inputs, Preprocess preprocess,
                     const std::vector<std::string>& classes, const std::string& augment, bool trains,
                     DataNotes* notes) {
  PictureRows rows =
      picture_rows(std::move(data.tensors), data.pictures, inputs, classes, augment, trains, &preprocess, notes);
  const std::string target = first_label(inputs);
  if (data.pictures && !target.empty() && !rows.tensors.count(target) && !rows.readers.count(target)) {
    fail_as(ErrorCode::kData, data.pictures->root, " has pictures without classes or masks; the model expects '",
            target,
            "': put them into a folder for each class, or name file and class in a CSV with the columns path,class");
  }
  Dataset dataset(rows.tensors, inputs, preprocess, rows.readers);
  dataset.augment = augment;
  dataset.classes = std::move(rows.classes);
  return dataset;
}

Dataset load_dataset(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role,
                     const Preprocess& preprocess) {
  DataNotes notes;
  return make_dataset(read_needed(path, inputs, role), inputs, preprocess, {}, "", /*trains=*/true, &notes);
}

Dataset load_dataset(const std::string& path, const Model& model, const std::string& entry, const DataOptions& options,
                     DataNotes* notes) {
  const std::vector<InputSpec> inputs = entry_inputs(model, entry);
  std::string note;
  const Preprocess preprocess = preprocess_of(model, options, inputs, &note);
  if (!note.empty()) notes->push_back(note);
  Dataset data = make_dataset(read_arrays(path, model, entry, inputs), inputs, preprocess,
                              classes_from_json(model.metadata(kClassNames)), options.augment,
                              entry != "evaluate" && entry != "predict", notes);
  const std::string hint = options.says_how() ? "" : bytes_hint(data, model);
  if (!hint.empty()) notes->push_back(concat(path, ": ", hint));
  return data;
}

TensorMap first_batch(const std::string& path, const std::vector<InputSpec>& inputs, std::optional<int64_t> count,
                      const Preprocess& preprocess) {
  const Dataset data = load_dataset(path, inputs, DataRole::kTrain, preprocess);
  const int64_t samples = data.num_samples();
  if (count && *count > samples) {
    fail_as(ErrorCode::kUsage, "the batch size is ", *count, ", but ", path, " has ", samples,
            samples == 1 ? " sample" : " samples");
  }
  std::vector<int64_t> rows(static_cast<size_t>(count.value_or(std::min(kUsualBatch, samples))));
  std::iota(rows.begin(), rows.end(), 0);
  TensorMap batch;
  data.gather(rows.data(), static_cast<int64_t>(rows.size()), &batch);
  return batch;
}

}  // namespace onnx_train
