// What a path is: by its kind, its name, or the files in a folder.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "platform/glob.h"
#include "runtime/data/chats/conversations.h"
#include "runtime/data/chats/preferences.h"
#include "runtime/data/files/npy.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/files.h"
#include "runtime/data/loading/document_source.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/loading/text_stream.h"
#include "runtime/data/tables/labelled_texts.h"
#include "runtime/data/tables/picture_table.h"
#include "runtime/data/tables/table.h"
#include "runtime/data/texts/document_texts.h"
#include "runtime/data/texts/packing.h"

namespace onnx_train {
namespace {

// Pictures in files, of which nothing is read before a batch needs it: with masks as the options say, or as the model
// knows them.
DataArrays picture_arrays(std::shared_ptr<const PictureFiles> files, const ReadOptions& options,
                          std::map<std::string, std::string> metadata = {}) {
  expect_decoders(files->root);
  const auto known = options.metadata.find(kMaskValues);
  std::string values;
  for (const std::string& value : options.mask_values) values += concat(values.empty() ? "" : ",", value);
  if (values.empty() && known != options.metadata.end()) values = known->second;
  if (!values.empty() && !files->masks.empty()) {
    auto mapped = std::make_shared<PictureFiles>(*files);
    mapped->mask_values = read_mask_values(values);
    files = std::move(mapped);
    metadata[kMaskValues] = values;
  }
  return {.pictures = std::move(files), .metadata = std::move(metadata)};
}

namespace fs = std::filesystem;

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

// Files of tokens, of texts, or, with a tokenizer, of conversations, which the first one tells.
DataArrays open_texts(const std::vector<TokenFiles>& sources, const std::vector<InputSpec>& inputs,
                      const ReadOptions& options) {
  const std::string& first = sources[0].paths[0];
  const bool are_pairs = holds_preferences(first);
  if (takes_pairs(inputs) && (!are_pairs || options.tokenizer.empty())) {
    throw UsageError(concat(first,
                            ": the loss compares pairs of answers, which are read of lines of .jsonl with "
                            "\"prompt\", \"chosen\" and \"rejected\", and with --tokenizer"));
  }
  if (are_pairs && packs(options.packing))
    throw UsageError(concat("--packing: ", first, " holds pairs of answers, each of which is a sample of its own"));
  if (options.tokenizer.empty() || (!are_pairs && !holds_conversations(first)))
    return options.packing.empty() ? open_tokens(sources, inputs, options) : open_documents(sources, inputs, options);
  std::vector<std::string> paths;
  for (const TokenFiles& source : sources) {
    if (source.weight) throw UsageError(concat("'", source.name, "': conversations have no weights"));
    paths.insert(paths.end(), source.paths.begin(), source.paths.end());
  }
  if (are_pairs && !takes_pairs(inputs))
    throw UsageError(concat(first, " holds pairs of answers, which --loss 'dpo(beta=0.1)' compares"));
  if (are_pairs) return open_preferences(paths, inputs, options);
  return open_conversations(paths, inputs, options);
}

DataArrays open_folder(const std::string& folder, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  const bool train = is_for_training(options);
  const std::string set = train ? "train" : "t10k";
  const auto images = files_starting(folder, set + "-images"), labels = files_starting(folder, set + "-labels");
  if (!images.empty() && !labels.empty()) return open_idx(images[0], labels[0], inputs);
  const auto batches = files_starting(folder, train ? "data_batch_" : "test_batch");
  if (!batches.empty()) return open_cifar10(batches, inputs);
  const auto is_array = [&](const InputSpec& spec) { return fs::exists(fs::path(folder) / (spec.name + ".npy")); };
  if (token_inputs(inputs).tokens && std::none_of(inputs.begin(), inputs.end(), is_array)) {
    if (const auto files = token_files(folder, train); !files.empty())
      return open_texts({{folder, files}}, inputs, options);
  }
  const bool has_arrays = !files_of(folder, [](const std::string& name) { return name.ends_with(".npy"); }).empty();
  const auto pictures = has_arrays ? nullptr : find_pictures(folder, train);
  return pictures ? picture_arrays(pictures, options) : open_npy_folder(folder);
}

}  // namespace

DataArrays open_npy_folder(const std::string& folder) {
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
        ErrorCode::kDataFormat, "the folder ", folder, " holds ", files.empty() ? "nothing" : found,
        ", but no *.npy, no train-images* with train-labels* (MNIST; t10k-* to evaluate), no data_batch_* (CIFAR-10; ",
        "test_batch* to evaluate), no pictures and no folders of them; ", kFormats);
  }
  return arrays_of(arrays);
}

namespace {

// A folder for training and for tests is chosen from by role; a pattern means all that it stands for.
DataArrays open_pattern(const std::string& pattern, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  const std::vector<std::string> files = platform::files_of_glob(pattern);
  if (files.empty()) fail_as(ErrorCode::kNoData, "no file is named like ", pattern);
  if (files.size() == 1) return open_data(files[0], inputs, options);
  if (std::all_of(files.begin(), files.end(), [](const std::string& file) { return file.ends_with(".bin"); })) {
    return open_cifar10(files, inputs);
  }
  fail_as(ErrorCode::kFile, pattern, " stands for ", files.size(), " files, ", files[0],
          " the first; several files are read of tokens (.bin, .npy, .txt, .jsonl) and of CIFAR-10");
}

// "a.bin:0.7" as the files of a.bin and their weight. None where there are no tokens of that name.
std::optional<TokenFiles> token_source(const std::string& text, bool train) {
  const auto files_at = [&](const std::string& path) -> std::vector<std::string> {
    std::error_code error;
    if (fs::is_directory(path, error)) return token_files(path, train);
    if (fs::exists(path, error)) return {path};
    return path.find_first_of("*?[") == std::string::npos ? std::vector<std::string>() : platform::files_of_glob(path);
  };
  TokenFiles source{text, files_at(text)};
  const size_t colon = text.rfind(':');
  if (source.paths.empty() && colon != std::string::npos) {
    double weight = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, fault] = std::from_chars(text.data() + colon + 1, end, weight);
    const std::string name = text.substr(0, colon);
    if (fault == std::errc() && stop == end) source = {name, files_at(name), weight};
    if (!source.paths.empty() && !(weight > 0 && std::isfinite(weight))) {
      throw UsageError(concat("'", text, "': a weight is a number above 0"));
    }
  }
  const bool are_tokens = std::all_of(source.paths.begin(), source.paths.end(), is_token_file);
  return source.paths.empty() || !are_tokens ? std::nullopt : std::optional(source);
}

// Several sources of tokens, "a.bin,b/*.bin" or "a.bin:0.7,b.bin:0.3". None if the first is no such source.
std::vector<TokenFiles> token_sources(const std::string& text, bool train) {
  std::vector<TokenFiles> sources;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::optional<TokenFiles> source = token_source(part, train);
    if (!source && sources.empty()) return {};
    if (!source) fail_as(ErrorCode::kNoData, "there are no tokens at ", part, ", a part of ", text);
    sources.push_back(std::move(*source));
    if (sources[0].weight.has_value() != sources.back().weight.has_value()) {
      const std::string& without = sources[0].weight ? sources.back().name : sources[0].name;
      throw UsageError(
          concat(without, " has no weight, and others have: all have one, 'a.bin:0.7,b.bin:0.3', or none"));
    }
  }
  return sources;
}

}  // namespace

std::vector<std::string> text_files(const std::string& path, DataRole role) {
  std::vector<std::string> files;
  for (const TokenFiles& source : token_sources(path, role == DataRole::kTrain))
    files.insert(files.end(), source.paths.begin(), source.paths.end());
  return files;
}

std::vector<std::string> streamed_files(const std::string& path, DataRole role) {
  if (path == "-") return {path};
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    files = token_files(path, role == DataRole::kTrain);
    if (files.empty()) files = files_of(path, [](const std::string& name) { return is_streamed_file(name); });
  } else {
    files = fs::exists(path, error) ? std::vector<std::string>{path} : platform::files_of_glob(path);
  }
  const bool are_streamed = std::ranges::all_of(files, is_streamed_file);
  if (files.empty()) fail_as(ErrorCode::kNoData, "there are no texts or tokens at ", path);
  if (!are_streamed)
    throw UsageError(
        concat("--stream reads .jsonl, .jsonl.gz, .txt, .txt.gz, .bin and .npy of texts and tokens, and "
               "a pattern or folder of these, not ",
               path));
  return files;
}

DataArrays open_csv(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  DataTable table = read_csv(path);
  const std::string label = first_label(inputs);
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const auto& spec) { return spec.name == label; });
  const InputSpec* target = found == inputs.end() ? nullptr : &*found;
  const bool takes_pictures = !inputs.empty() && inputs[0].type.has_rank() && inputs[0].type.rank() == 4;
  if (takes_pictures || is_picture_table(table)) rename_columns(options, target, &table);
  if (is_picture_table(table)) {
    const KnownColumns known = trained_columns(options.metadata);
    const auto columns = known.find(label);
    ReadOptions reading = options;
    const auto separator = options.metadata.find(kLabelSeparator);
    if (reading.label_separator.empty() && separator != options.metadata.end())
      reading.label_separator = separator->second;
    const PictureTable read = read_picture_table(table, target, reading,
                                                 columns == known.end() ? std::vector<std::string>() : columns->second);
    std::map<std::string, std::string> metadata;
    if (!read.columns.empty() && target) metadata[kTableInputs] = columns_to_json({{label, read.columns}});
    if (read.columns.empty() && !read.files->targets.empty()) metadata[kLabelSeparator] = reading.label_separator;
    return picture_arrays(read.files, options, std::move(metadata));
  }
  if (takes_pictures) {
    std::string columns;
    for (const std::string& name : table.columns) columns += concat(columns.empty() ? "" : ", ", name);
    fail_as(ErrorCode::kData, path, " has no column path, file or filename, which names pictures for '", inputs[0].name,
            "'; it has ", columns, ": --map COLUMN=path says which it is");
  }
  if (takes_labelled_texts(inputs, options)) {
    if (auto texts = open_labelled_texts(table, inputs, options)) return std::move(*texts);
  }
  return arrays_of(table, inputs, options);
}

namespace {

using Opened = std::optional<DataArrays>;
using Inputs = std::vector<InputSpec>;

// A format of single files. The first row that matches a path and opens it is what the path is.
struct DataFormat {
  bool (*matches)(const std::string& path);
  Opened (*open)(const std::string& path, const Inputs& inputs, const ReadOptions& options);  // nothing: another row's
};

template <const char* suffix>
bool ends(const std::string& path) {
  return path.ends_with(suffix);
}

Opened open_labelled_lines(const std::string& path, const Inputs& inputs, const ReadOptions& options) {
  if (!takes_labelled_texts(inputs, options)) return std::nullopt;
  if (auto texts = open_labelled_texts(read_json_lines(path), inputs, options)) return texts;
  fail_as(ErrorCode::kData, path, " has no \"text\" in its first line; --map NAME=", token_inputs(inputs).tokens->name,
          " says which name has the texts");
}

Opened open_text_lines(const std::string& path, const Inputs& inputs, const ReadOptions& options) {
  if (!takes_texts_alone(inputs, options)) return std::nullopt;
  ReadOptions reading = options;
  reading.map.clear();  // there are no columns
  return open_labelled_texts(read_text_lines(path, inputs, options), inputs, reading);
}

Opened open_token_file(const std::string& path, const Inputs& inputs, const ReadOptions& options) {
  if (token_inputs(inputs).tokens) return open_texts({{path, {path}}}, inputs, options);
  if (path.ends_with(".bin")) return std::nullopt;  // CIFAR-10's
  fail_as(ErrorCode::kData, path, " holds tokens, but the model has no input int64[batch, tokens]");
}

bool is_read_by_python(const std::string& path) {
  return path.ends_with(".parquet") || path.ends_with(".feather") || path.ends_with(".arrow");
}

bool is_libsvm(const std::string& path) {
  return path.ends_with(".libsvm") || path.ends_with(".svm") || path.ends_with(".svmlight");
}

bool is_idx(const std::string& path) {
  return path.find("ubyte") != std::string::npos || path.find("idx") != std::string::npos;
}

constexpr char kNpz[] = ".npz", kSafetensors[] = ".safetensors", kJson[] = ".json", kCsv[] = ".csv",
               kJsonLines[] = ".jsonl", kText[] = ".txt", kBin[] = ".bin";

constexpr DataFormat kFormatsOfFiles[] = {
    {ends<kNpz>, [](const std::string& path, const Inputs&, const ReadOptions&) -> Opened { return open_npz(path); }},
    {ends<kSafetensors>,
     [](const std::string& path, const Inputs&, const ReadOptions&) -> Opened { return open_safetensors(path); }},
    {is_picture_name,
     [](const std::string& path, const Inputs&, const ReadOptions& options) -> Opened {
       return picture_arrays(one_picture(path), options);
     }},
    {ends<kJson>,
     [](const std::string& path, const Inputs&, const ReadOptions& options) -> Opened {
       return picture_arrays(read_coco(path), options);
     }},
    {ends<kCsv>,
     [](const std::string& path, const Inputs& inputs, const ReadOptions& options) -> Opened {
       return open_csv(path, inputs, options);
     }},
    {is_libsvm,
     [](const std::string& path, const Inputs& inputs, const ReadOptions& options) -> Opened {
       return open_libsvm(path, inputs, options);
     }},
    {ends<kJsonLines>, open_labelled_lines},
    {ends<kText>, open_text_lines},
    {is_token_file, open_token_file},
    {ends<kBin>,
     [](const std::string& path, const Inputs& inputs, const ReadOptions&) -> Opened {
       return open_cifar10({path}, inputs);
     }},
    {is_read_by_python,
     [](const std::string& path, const Inputs&, const ReadOptions&) -> Opened {
       fail_as(ErrorCode::kDataFormat, path, " is read from Python alone, by pyarrow: onnx_train.fit(model, '", path,
               "'), or onnx_train.convert_table('", path, "', 'table.csv') for the command");
     }},
    {is_idx, [](const std::string& path, const Inputs& inputs, const ReadOptions&) -> Opened {
       return open_idx(path, "", inputs);
     }}};

}  // namespace

DataArrays open_data(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
  if (path == "-" && token_inputs(inputs).tokens && !holds_archives())
    throw UsageError("texts from standard input are read by fit alone, while it trains a model of onnx-train build");
  if (path == "-") return open_standard_input();
  std::error_code error;
  if (fs::is_directory(path, error)) return open_folder(path, inputs, options);
  const bool exists = fs::exists(path, error);
  if (!exists && token_inputs(inputs).tokens) {
    const auto sources = token_sources(path, is_for_training(options));
    if (!sources.empty()) return open_texts(sources, inputs, options);
  }
  if (!exists && path.find_first_of("*?[") != std::string::npos) return open_pattern(path, inputs, options);
  if (const size_t comma = path.find(','); comma != std::string::npos && !exists) {
    return open_idx(path.substr(0, comma), path.substr(comma + 1), inputs);
  }
  if (!exists) fail_as(ErrorCode::kNoData, "there is no data at ", path);
  for (const DataFormat& format : kFormatsOfFiles) {
    if (!format.matches(path)) continue;
    if (Opened file = format.open(path, inputs, options)) return std::move(*file);
  }
  fail_as(ErrorCode::kDataFormat, "the kind of ", path, " is not known by its name; ", kFormats);
}

}  // namespace onnx_train
