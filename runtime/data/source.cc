#include "runtime/data/source.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/expression.h"
#include "runtime/data/data_check.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/npy.h"
#include "runtime/data/npz.h"
#include "runtime/data/readers.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/table.h"
#include "runtime/data/tokens.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

class ArraySource : public DataSource {
 public:
  ArraySource(std::string path, DataArrays arrays) : path_(std::move(path)), arrays_(std::move(arrays)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : arrays_.tensors) names.push_back(name);
    return names;
  }
  bool contains(const std::string& name) const override { return arrays_.tensors.count(name) > 0; }
  Tensor read(const std::string& name) const override {
    const auto found = arrays_.tensors.find(name);
    if (found == arrays_.tensors.end()) fail_as(ErrorCode::kFile, path_, " has no array '", name, "'");
    return found->second;
  }
  std::string summary() const override { return arrays_.summary; }
  std::vector<std::string> notes() const override { return arrays_.notes; }
  std::map<std::string, std::string> metadata() const override { return arrays_.metadata; }

 private:
  std::string path_;
  DataArrays arrays_;
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

bool is_for_training(const ReadOptions& options) { return options.role.value_or(DataRole::kTrain) == DataRole::kTrain; }

// The files of tokens in a folder, if there are any, of the first kind that it has: for training those whose names say
// "train", or all that say neither "val" nor "test"; for tests these.
std::vector<std::string> token_files(const std::string& folder, bool train) {
  for (const char* kind : {".bin", ".npy", ".jsonl", ".txt"}) {
    const auto files = files_of(folder, [&](const std::string& name) { return name.ends_with(kind); });
    std::vector<std::string> training, tests, others;
    for (const std::string& file : files) {
      const std::string name = fs::path(file).filename().string();
      const auto says = [&](const char* word) { return name.find(word) != std::string::npos; };
      (says("train") ? training : says("val") || says("test") ? tests : others).push_back(file);
    }
    if (files.empty()) continue;
    const std::vector<std::string>& chosen = train                               ? training.empty() ? others : training
                                             : tests.empty() && training.empty() ? others
                                                                                 : tests;
    if (!chosen.empty()) return chosen;
    fail_as(ErrorCode::kFile, "the folder ", folder, " has ", files.size(), " *", kind, " files, ", files[0],
            " the first, and none for ", train ? "training" : "tests, whose name says val or test");
  }
  return {};
}

// The files that a pattern with *, ? or [...] stands for, in alphabetical order.
std::vector<std::string> files_like(const std::string& pattern) {
  glob_t found{};
  const int status = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  globfree(&found);
  return files;
}

std::unique_ptr<DataSource> open_folder(const std::string& folder, const std::vector<InputSpec>& inputs,
                                        const ReadOptions& options) {
  const bool train = is_for_training(options);
  const std::string set = train ? "train" : "t10k";
  const auto images = files_starting(folder, set + "-images"), labels = files_starting(folder, set + "-labels");
  if (!images.empty() && !labels.empty()) return open_idx(images[0], labels[0], inputs);
  const auto batches = files_starting(folder, train ? "data_batch_" : "test_batch");
  if (!batches.empty()) return open_cifar10(batches, inputs);
  const auto is_array = [&](const InputSpec& spec) { return fs::exists(fs::path(folder) / (spec.name + ".npy")); };
  if (takes_tokens(inputs) && std::none_of(inputs.begin(), inputs.end(), is_array)) {
    if (const auto files = token_files(folder, train); !files.empty()) return open_tokens(files, inputs, options);
  }
  const bool has_arrays = !files_of(folder, [](const std::string& name) { return name.ends_with(".npy"); }).empty();
  const auto pictures = has_arrays ? nullptr : find_pictures(folder, train);
  return pictures ? std::make_unique<PictureSource>(pictures) : open_npy_folder(folder);
}

}  // namespace

std::unique_ptr<DataSource> make_source(const std::string& path, TensorMap arrays) {
  return make_source(path, DataArrays{std::move(arrays), {}, "", {}, {}});
}

std::unique_ptr<DataSource> make_source(const std::string& path, DataArrays arrays) {
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

namespace {

// A folder for training and for tests is chosen from by role; a pattern means all that it stands for.
std::unique_ptr<DataSource> open_pattern(const std::string& pattern, const std::vector<InputSpec>& inputs,
                                         const ReadOptions& options) {
  const std::vector<std::string> files = files_like(pattern);
  if (files.empty()) fail_as(ErrorCode::kFile, "no file is named like ", pattern);
  if (takes_tokens(inputs) && std::all_of(files.begin(), files.end(), is_token_file)) {
    return open_tokens(files, inputs, options);
  }
  if (files.size() == 1) return open_data(files[0], inputs, options);
  if (std::all_of(files.begin(), files.end(), [](const std::string& file) { return file.ends_with(".bin"); })) {
    return open_cifar10(files, inputs);
  }
  fail_as(ErrorCode::kFile, pattern, " stands for ", files.size(), " files, ", files[0],
          " the first; several files are read of tokens (.bin, .npy, .txt, .jsonl) and of CIFAR-10");
}

}  // namespace

std::unique_ptr<DataSource> open_data(const std::string& path, const std::vector<InputSpec>& inputs,
                                      const ReadOptions& options) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_folder(path, inputs, options);
  const bool exists = fs::exists(path, error);
  if (!exists && path.find_first_of("*?[") != std::string::npos) return open_pattern(path, inputs, options);
  if (const size_t comma = path.find(','); comma != std::string::npos && !exists) {
    return open_idx(path.substr(0, comma), path.substr(comma + 1), inputs);
  }
  if (!exists) fail_as(ErrorCode::kFile, "there is no data at ", path);
  const auto ends = [&](const char* suffix) { return path.ends_with(suffix); };
  if (ends(".npz")) return open_npz(path);
  if (ends(".safetensors")) return open_safetensors(path);
  if (is_picture_name(path)) return std::make_unique<PictureSource>(one_picture(path));
  if (ends(".csv")) {
    const auto pictures = read_picture_table(path);
    return pictures ? std::make_unique<PictureSource>(pictures) : open_csv(path, inputs, options);
  }
  if (is_token_file(path) && takes_tokens(inputs)) return open_tokens({path}, inputs, options);
  if (ends(".bin")) return open_cifar10({path}, inputs);
  if (is_token_file(path)) {
    fail_as(ErrorCode::kData, path, " holds tokens, but the model has no input int64[batch, tokens]");
  }
  if (ends(".parquet") || ends(".feather") || ends(".arrow")) {
    fail_as(ErrorCode::kFile, path, " is read from Python alone, by pyarrow: onnx_train.fit(model, '", path,
            "'), or onnx_train.convert_table('", path, "', 'table.csv') for the command");
  }
  if (path.find("ubyte") != std::string::npos || path.find("idx") != std::string::npos) {
    return open_idx(path, "", inputs);
  }
  fail_as(ErrorCode::kFile, "the kind of ", path, " is not known by its name; ", kFormats);
}

namespace {

// The name that an input's array has in the file: --map COLUMN=INPUT.
std::string name_in_file(const std::string& input, const std::vector<NamedList>& map) {
  for (const NamedList& pair : map) {
    if (pair.values[0] == input) return pair.name;
  }
  return input;
}

// Throws UsageError for names that no input has.
std::vector<NamedList> checked_map(const DataOptions& options, const std::vector<InputSpec>& inputs) {
  std::vector<std::string> names;
  for (const InputSpec& spec : inputs) names.push_back(spec.name);
  std::vector<NamedList> map = named_lists(options.map, "--map");
  for (const NamedList& pair : map) {
    if (pair.values.size() > 1) throw UsageError(concat("--map: '", pair.name, "' goes to one input"));
    if (std::count(names.begin(), names.end(), pair.values[0]) == 0) {
      throw UsageError(
          concat("--map: the model has no input '", pair.values[0], "'", did_you_mean(pair.values[0], names)));
    }
  }
  return map;
}

// The arrays that `inputs` need. `others` may be in the file, too.
DataArrays read_needed(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                       const std::vector<InputSpec>& others = {}) {
  std::vector<InputSpec> known = inputs;
  known.insert(known.end(), others.begin(), others.end());
  const std::vector<NamedList> map = checked_map(options, known);
  const std::unique_ptr<DataSource> source = open_data(path, known, options);
  DataArrays arrays;
  if ((arrays.pictures = source->pictures())) {
    if (arrays.pictures->files.empty()) fail_as(ErrorCode::kData, path, " holds no pictures");
    return arrays;
  }
  std::string found;
  for (const std::string& name : source->names()) found += concat(found.empty() ? "" : ", ", name);
  for (const InputSpec& spec : inputs) {
    // Tables rename their columns themselves.
    std::string name = name_in_file(spec.name, map);
    if (!source->contains(name)) name = spec.name;
    if (auto rows = source->rows(name)) {
      arrays.readers[spec.name] = std::move(rows);
    } else if (source->contains(name)) {
      arrays.tensors[spec.name] = source->read(name);
    } else if (!spec.has_default) {
      fail_as(ErrorCode::kData, path, " has no '", spec.name, "', which the model expects as ", to_string(spec.type),
              "; it holds ", found.empty() ? "nothing" : found);
    }
  }
  arrays.summary = source->summary();
  arrays.notes = source->notes();
  arrays.metadata = source->metadata();
  return arrays;
}

// The label that the loss ignores.
std::optional<int64_t> ignored_label(const Model& model, const std::string& entry,
                                     const std::vector<InputSpec>& inputs) {
  const auto ranges = index_ranges(model, entry);
  const auto found = ranges.find(first_label(inputs));
  if (found == ranges.end()) return {};
  for (const IndexRange& range : found->second) {
    if (range.has_other) return range.other;
  }
  return {};
}

}  // namespace

DataArrays read_arrays(const std::string& path, const Model& model, const std::string& entry,
                       const std::vector<InputSpec>& inputs, const ReadOptions& given) {
  // For a prediction a table may hold targets: they are not among the columns that are left for the first input.
  std::vector<InputSpec> others;
  if (entry == "predict" && model.find_entry_point("evaluate")) others = entry_inputs(model, "evaluate");
  for (InputSpec& spec : others) spec.has_default = true;
  const bool tests = entry == "evaluate" || entry == "predict";
  ReadOptions options = given;
  if (!options.role) options.role = tests ? DataRole::kEvaluate : DataRole::kTrain;
  if (options.document_end) options.ignored_label = ignored_label(model, entry, inputs);
  for (const char* key : {kClasses, kColumns}) {
    if (const std::string text = model.metadata(key); !text.empty()) options.metadata[key] = text;
  }
  return read_needed(path, inputs, options, others);
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

void write_arrays(const std::string& path, const TensorMap& arrays) {
  is_safetensors(path) ? write_safetensors(path, arrays) : write_npz(path, arrays);
}

Dataset make_dataset(DataArrays data, const std::vector<InputSpec>& inputs, Preprocess preprocess, const Model& model,
                     const std::string& augment, bool trains, DataNotes* notes) {
  PictureRows rows = picture_rows(std::move(data.tensors), data.pictures, inputs,
                                  classes_from_json(model.metadata(kClasses)), augment, trains, &preprocess, notes);
  const std::string target = first_label(inputs);
  if (data.pictures && !target.empty() && !rows.tensors.count(target) && !rows.readers.count(target)) {
    fail_as(ErrorCode::kData, data.pictures->root, " has pictures without classes or masks; the model expects '",
            target,
            "': put them into a folder for each class, or name file and class in a CSV with the columns path,class");
  }
  rows.readers.merge(data.readers);
  Dataset dataset(rows.tensors, inputs, preprocess, rows.readers);
  if (!rows.classes.empty()) data.metadata[kClasses] = classes_to_json(rows.classes);
  dataset.set_metadata(std::move(data.metadata));
  dataset.augment = augment;
  return dataset;
}

Dataset load_dataset(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role,
                     const Preprocess& preprocess, ReadOptions options) {
  options.role = role;
  DataNotes notes;
  return make_dataset(read_needed(path, inputs, options), inputs, preprocess, Model(), "", /*trains=*/true, &notes);
}

Dataset load_dataset(const std::string& path, const Model& model, const std::string& entry, const ReadOptions& options,
                     DataNotes* notes) {
  const std::vector<InputSpec> inputs = entry_inputs(model, entry);
  std::string note;
  const Preprocess preprocess = preprocess_of(model, options, inputs, &note);
  if (!note.empty()) notes->push_back(note);
  DataArrays arrays = read_arrays(path, model, entry, inputs, options);
  if (!arrays.summary.empty()) notes->push_back(arrays.summary);
  notes->insert(notes->end(), arrays.notes.begin(), arrays.notes.end());
  Dataset data = make_dataset(std::move(arrays), inputs, preprocess, model, options.augment,
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
