#include "runtime/data/loading/source.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/class_names.h"
#include "runtime/data/files/npz.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/images/boxes.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/loading/data_check.h"
#include "runtime/data/sample_axes.h"
#include "runtime/data/tables/table.h"
#include "runtime/data/texts/document_inputs.h"
#include "runtime/data/texts/label_shift.h"
#include "runtime/data/texts/position_table.h"

namespace onnx_train {
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
  names.push_back("path");  // of a table: the column with the files of pictures
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
  DataArrays data = open_data(path, known, options);
  if (data.pictures) {
    if (data.pictures->files.empty()) fail_as(ErrorCode::kData, path, " holds no pictures");
    data.pictures = readable_pictures(std::move(data.pictures), options.on_bad_picture, options.faults.get());
    return data;
  }
  const std::map<std::string, Rows> all = std::exchange(data.arrays, {});
  std::string found;
  for (const auto& [name, rows] : all) found += concat(found.empty() ? "" : ", ", name);
  for (const InputSpec& spec : inputs) {
    // Tables rename their columns themselves.
    auto rows = all.find(name_in_file(spec.name, map));
    if (rows == all.end()) rows = all.find(spec.name);
    if (rows != all.end()) data.arrays[spec.name] = rows->second.loaded();
  }
  fill_positions(inputs, &data);
  for (const InputSpec& spec : inputs) {
    if (spec.has_default || data.find(spec.name)) continue;
    fail_as(ErrorCode::kArrayMissing, path, " has no '", spec.name, "', which the model expects as ",
            to_string(spec.type), "; it holds ", found.empty() ? "nothing" : found);
  }
  return data;
}

// The label that the loss ignores.
std::optional<int64_t> ignored_label(const Model& model, const EntryName& entry, const std::vector<InputSpec>& inputs) {
  const auto ranges = index_ranges(model, entry);
  const auto found = ranges.find(first_label(inputs));
  if (found == ranges.end()) return {};
  for (const IndexRange& range : found->second) {
    if (range.has_other) return range.other;
  }
  return {};
}

int64_t vocabulary_of(const Model& model, const EntryName& entry, const std::string& input) {
  const auto ranges = index_ranges(model, entry);
  int64_t most = -1;
  if (const auto found = ranges.find(input); found != ranges.end()) {
    for (const IndexRange& range : found->second) most = most < 0 ? range.most : std::min(most, range.most);
  }
  return most + 1;
}

bool writes_tokens(const Model& model, const EntryName& entry, const std::string& input) {
  const int64_t vocabulary = vocabulary_of(model, entry, input);
  return std::ranges::any_of(model.graph->outputs(), [&](const Value* output) {
    const bool is_of_tokens = output->has_rank() && output->rank() == 3;
    return is_of_tokens && (vocabulary == 0 || output->type().dims->back().same(Dim(vocabulary)));
  });
}

// Texts are as long as the model has positions, at most.
void check_positions(const DataArrays& data, const Model& model, const std::vector<InputSpec>& inputs) {
  const TokenInputs to = token_inputs(inputs);
  const Rows* rows = to.tokens ? data.find(to.tokens->name) : nullptr;
  if (!rows) return;
  const bool is_made = rows->reader() != nullptr;
  const Shape shape = rows->spec().shape;
  const PositionTable table = position_table(model);
  if (shape.size() != 2 || table.positions == 0 || shape[1] <= table.positions) return;
  fail_as(ErrorCode::kTokenBlocks, "'", to.tokens->name, "' has ", shape[1], " tokens in a sample, and '", table.weight,
          "' has ", table.positions, " positions: ", is_made ? "--block-size " : "samples of ", table.positions,
          is_made ? "" : " tokens", " at most");
}

// Throws Error for boxes of more categories than the detector has.
void check_categories(const PictureFiles& files, const Model& model, const EntryName& entry,
                      const std::vector<InputSpec>& inputs) {
  const InputSpec* target = files.boxes ? box_target(inputs) : nullptr;
  const auto taken = target ? classes_of_boxes(model, entry, target->name) : std::nullopt;
  const auto categories = static_cast<int64_t>(files.classes.size());
  if (!taken || categories <= taken->most + 1) return;
  std::set<int64_t> used;
  for (const auto& boxes : files.boxes->boxes) {
    for (const LabelledBox& box : boxes) used.insert(box.label);
  }
  std::string all, unused;
  for (int64_t i = 0; i < categories; ++i) {
    const std::string& name = files.classes[static_cast<size_t>(i)];
    all += concat(i == 0 ? "" : ", ", name);
    if (used.count(i) == 0) unused += concat(unused.empty() ? "" : ", ", name);
  }
  fail_as(ErrorCode::kData, files.boxes->path, " has ", categories, " categories (", all, "), and the model tells ",
          taken->most + 1, " apart (", taken->reader, "): ",
          unused.empty() ? std::string("take a network with as many outputs")
                         : concat("no box is of ", unused, ", which may be taken out of \"categories\""));
}

}  // namespace

ReadOptions reading_of(const Model& model, const EntryName& entry, const std::vector<InputSpec>& inputs,
                       const ReadOptions& given) {
  ReadOptions options = given;
  if (!options.role) options.role = trains(entry.kind()) ? DataRole::kTrain : DataRole::kEvaluate;
  if (options.document_end || options.shift_labels || !options.tokenizer.empty() || !options.packing.empty())
    options.ignored_label = ignored_label(model, entry, inputs);
  options.vocabulary = [&model, entry](const std::string& input) { return vocabulary_of(model, entry, input); };
  options.is_factor = [&model](const std::string& input) { return is_factor(model, input); };
  for (const char* key : kTableMetadata) {
    if (const std::string text = model.metadata(key); !text.empty()) options.metadata[key] = text;
  }
  return options;
}

DataArrays read_arrays(const std::string& path, const Model& model, const EntryName& entry,
                       const std::vector<InputSpec>& inputs, const ReadOptions& given) {
  // For a prediction a table may hold targets: they are not among the columns that are left for the first input.
  std::vector<InputSpec> others;
  if (entry == Entry::kPredict && model.find_entry_point(Entry::kEvaluate))
    others = entry_inputs(model, Entry::kEvaluate);
  for (InputSpec& spec : others) spec.has_default = true;
  ReadOptions options = reading_of(model, entry, inputs, given);
  if (entry == Entry::kPredict && !options.tokenizer.empty())
    options.writes_tokens = [&](const std::string& input) { return writes_tokens(model, entry, input); };
  DataArrays arrays = read_needed(path, inputs, options, others);
  if (!options.tokenizer.empty() && arrays.metadata.count(kTokenizer) == 0)
    arrays.notes.push_back(concat("--tokenizer has no use: ", path, " holds no texts"));
  if (!options.packing.empty()) note_packing(path, options.packing, model, inputs, &arrays);
  if (arrays.pictures) check_categories(*arrays.pictures, model, entry, inputs);
  check_positions(arrays, model, inputs);
  if (options.shift_labels && entry != Entry::kPredict) {
    if (!options.ignored_label)
      throw UsageError("--shift-labels: the loss ignores no label; build it with ignore_index");
    shift_labels(&arrays, inputs, *options.ignored_label);
  }
  return arrays;
}

TensorMap read_arrays(const std::string& path) {
  const DataArrays data = open_data(path, {});
  if (data.pictures) fail_as(ErrorCode::kUsage, path, " holds pictures, which are read when a model needs them");
  TensorMap arrays;
  for (const auto& [name, rows] : data.arrays) arrays[name] = rows.read_all();
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
  data.notes.clear();  // the caller has said them
  fill_positions(inputs, &data);
  add_pictures(inputs, classes_from_json(model.metadata(kClassNames)), augment, trains, &preprocess, &data);
  const std::string target = first_label(inputs);
  if (data.pictures && !data.pictures->boxes && !target.empty() && !data.find(target)) {
    if (const std::string& why = data.pictures->unlabelled; !why.empty())
      fail_as(ErrorCode::kPictureClass, data.pictures->root, " has no classes for '", target, "': ", why);
    fail_as(ErrorCode::kPictureClass, data.pictures->root,
            " has pictures without classes, masks or boxes; the model expects '", target,
            "': put them into a folder for each class, or name file and class in a CSV with the columns path,class"
            ", or say which of its other columns are: --columns ",
            target, "=A,B (docs/data.md has all forms)");
  }
  Dataset dataset(data, inputs, preprocess);
  notes->insert(notes->end(), data.notes.begin(), data.notes.end());
  if (const std::string note = sample_axes_note(dataset); !note.empty()) notes->push_back(note);
  dataset.augment = augment;
  if (data.pictures) dataset.left_out = data.pictures->left_out;
  return dataset;
}

Dataset load_dataset(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role,
                     const Preprocess& preprocess, ReadOptions options, DataNotes* notes) {
  options.role = role;
  DataNotes ignored;
  DataArrays arrays = read_needed(path, inputs, options);
  if (notes) notes->insert(notes->end(), arrays.notes.begin(), arrays.notes.end());
  return make_dataset(std::move(arrays), inputs, preprocess, Model(), "", /*trains=*/true, &ignored);
}

Dataset load_dataset(const std::string& path, const Model& model, const EntryName& entry, const ReadOptions& options,
                     DataNotes* notes) {
  const std::vector<InputSpec> inputs = entry_inputs(model, entry);
  std::string note;
  const Preprocess preprocess = preprocess_of(model, options, inputs, &note);
  if (!note.empty()) notes->push_back(note);
  DataArrays arrays = read_arrays(path, model, entry, inputs, options);
  if (!arrays.summary.empty()) notes->push_back(arrays.summary);
  notes->insert(notes->end(), arrays.notes.begin(), arrays.notes.end());
  const bool is_training = trains(entry.kind());
  Dataset data = make_dataset(std::move(arrays), inputs, preprocess, model, options.augment, is_training, notes);
  if (const auto names = data.metadata().find(kClassNames); names != data.metadata().end() && is_training) {
    const auto classes = static_cast<int64_t>(classes_from_json(names->second).size());
    if (const int64_t told = vocabulary_of(model, entry, first_label(inputs)); classes > 0 && told > classes) {
      notes->push_back(concat(path, " has ", classes, " classes, and the model tells ", told,
                              " apart; build --head OUTPUT=", classes, " gives it a last layer for them"));
    }
  }
  const std::string hint = options.says_how() ? "" : bytes_hint(data, model);
  if (!hint.empty()) notes->push_back(concat(path, ": ", hint));
  return data;
}

TensorMap first_batch(const std::string& path, const std::vector<InputSpec>& inputs, std::optional<int64_t> count,
                      const Preprocess& preprocess) {
  const Dataset data = load_dataset(path, inputs, DataRole::kTrain, preprocess);
  const int64_t samples = data.num_samples();
  if (count && *count > samples) {
    fail_as(ErrorCode::kBatchSize, "the batch size is ", *count, ", but ", path, " has ", samples,
            samples == 1 ? " sample" : " samples");
  }
  std::vector<int64_t> rows(static_cast<size_t>(count.value_or(std::min(kUsualBatch, samples))));
  std::iota(rows.begin(), rows.end(), 0);
  TensorMap batch;
  data.gather(rows.data(), static_cast<int64_t>(rows.size()), &batch);
  return batch;
}

}  // namespace onnx_train
