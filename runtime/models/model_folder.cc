#include "runtime/models/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenaiConfig = "genai_config.json";

// Calls f, and names `path` where the system refuses.
template <typename F>
auto on_folder(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const fs::filesystem_error& error) {
    fail_as(ErrorCode::kFile, path, ": ", error.code().message());
  }
}

// The regular files of a folder and below it, as paths from there, in order. Links count as what they name.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files = on_folder(folder, [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) found.push_back(entry.path().lexically_relative(folder).generic_string());
    }
    return found;
  });
  std::sort(files.begin(), files.end());
  return files;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// The file of the decoder that GenAI's configuration names; "" if there is none.
std::string decoder_of_genai(const std::string& folder) {
  const std::string path = (fs::path(folder) / kGenaiConfig).generic_string();
  if (!is_file(path)) return "";
  constexpr uintmax_t kMostBytes = uintmax_t{1} << 24;
  std::error_code error;
  const bool is_short = fs::file_size(path, error) <= kMostBytes && !error;
  const auto config = nlohmann::json::parse(is_short ? read_file(path) : "", nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer where("/model/decoder/filename");
  if (config.is_discarded() || !config.contains(where) || !config.at(where).is_string())
    fail_as(ErrorCode::kFile, path, " names no decoder (model.decoder.filename): give the .onnx file itself");
  const fs::path file = fs::path(folder) / config.at(where).get<std::string>();
  if (!is_file(file)) fail_as(ErrorCode::kFile, path, " names the decoder ", file.string(), ", which is not there");
  return file.generic_string();
}

// Copies a file atomically, with the bytes of what a link names.
void write_copy(const fs::path& from, const fs::path& to) {
  const fs::path temporary = to.parent_path() / concat(".", to.filename().string(), ".copied");
  try {
    fs::copy_file(from, temporary, fs::copy_options::overwrite_existing);
    fs::rename(temporary, to);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail_as(ErrorCode::kCannotWrite, to.string(), ": cannot write: ", error.code().message());
  }
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

// The data files of the models, as paths from the folder.
std::set<std::string> data_of(const std::string& folder, const std::string& model) {
  std::set<std::string> files;
  const fs::path beside = fs::path(model).parent_path();
  for (const std::string& name :
       data_files_of((fs::path(folder) / model).generic_string()).value_or(std::set<std::string>()))
    files.insert((beside / name).lexically_normal().generic_string());
  return files;
}

}  // namespace

std::string model_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  if (const std::string decoder = decoder_of_genai(path); !decoder.empty()) return decoder;
  for (const char* name : {"model.onnx", "decoder_model.onnx", "decoder_model_merged.onnx"}) {
    for (const fs::path& folder : {fs::path(path), fs::path(path) / "onnx"}) {
      if (is_file(folder / name)) return (folder / name).generic_string();
    }
  }
  const std::vector<std::string> models = models_of_folder(path);
  if (models.size() == 1) return (fs::path(path) / models[0]).generic_string();
  fail_as(ErrorCode::kModelUnreadable, path, " is a folder with ",
          models.empty() ? std::string("no .onnx file")
                         : concat("the models ", first_few(models, size_t{4}, [](const auto& name) { return name; })),
          models.empty() ? ": give a model; docs/transformers.md exports those of PyTorch"
                         : ", and nothing says which is meant: give one of them");
}

std::vector<std::string> models_of_folder(const std::string& folder) {
  std::vector<std::string> files = files_below(folder);
  std::erase_if(files, [](const std::string& name) { return !name.ends_with(".onnx"); });
  return files;
}

void save_like(const ModelMessage& message, const std::string& like, const std::string& path) {
  SaveOptions options;
  if (const auto files = data_files_of(like); files && !files->empty()) options.max_bytes = 0;
  save_message(message, path, options);
}

void write_folder_like(const std::string& from, const std::map<std::string, ModelMessage>& models,
                       const std::string& to) {
  const auto [source, target] = on_folder(
      to, [&] { return std::pair(fs::weakly_canonical(fs::path(from)), fs::weakly_canonical(fs::path(to))); });
  if (is_within(source, target) || is_within(target, source))
    fail_as(ErrorCode::kUsage, "'", to, "' and '", from, "' are in each other: write into another folder");
  const std::vector<std::string> files = files_below(from);
  std::set<std::string> replaced, kept;
  for (const std::string& file : files) {
    if (!file.ends_with(".onnx")) continue;
    std::set<std::string>& data = models.count(file) ? replaced : kept;
    data.merge(data_of(from, file));
  }
  for (const std::string& file : files) {
    if (models.count(file) || (replaced.count(file) && !kept.count(file))) continue;
    const fs::path path = target / file;
    on_folder(path.string(), [&] { return fs::create_directories(path.parent_path()); });
    write_copy(source / file, path);
  }
  for (const auto& [file, message] : models) {
    const fs::path path = target / file;
    on_folder(path.string(), [&] { return fs::create_directories(path.parent_path()); });
    save_like(message, (fs::path(from) / file).generic_string(), path.generic_string());
  }
}

}  // namespace onnx_train
