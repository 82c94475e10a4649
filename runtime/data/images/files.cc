#include "runtime/data/images/files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

std::string as_root(const fs::path& folder) { return folder.string() + "/"; }

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

// The pictures below `root`, relative to it, sorted by name. A link to a folder above it does not end: links to folders
// are followed at the first level alone, where classes are.
std::vector<std::string> pictures_below(const fs::path& root) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(root, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (is_hidden(it->path())) {
      it.disable_recursion_pending();
    } else if (is_picture_name(it->path().string()) && !it->is_directory(error)) {
      files.push_back(it->path().lexically_relative(root).string());
    }
  }
  if (error) fail_as(ErrorCode::kFile, "cannot read the folder ", root.string(), ": ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> folders_of(const fs::path& root) {
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error) && !is_hidden(it->path())) folders.push_back(it->path().filename().string());
  }
  if (error) fail_as(ErrorCode::kFile, "cannot read the folder ", root.string(), ": ", error.message());
  std::sort(folders.begin(), folders.end());
  return folders;
}

PictureFiles with_masks(const fs::path& root) {
  PictureFiles result{as_root(root), {}, {}, {}, {}};
  std::map<std::string, std::string> masks;
  for (const std::string& mask : pictures_below(root / "masks")) {
    masks[fs::path(mask).replace_extension().string()] = mask;
  }
  for (const std::string& file : pictures_below(root / "images")) {
    const auto mask = masks.find(fs::path(file).replace_extension().string());
    if (mask == masks.end())
      fail_as(ErrorCode::kFile, result.root, "images/", file, " has no mask in ", result.root, "masks");
    result.files.push_back("images/" + file);
    result.masks.push_back("masks/" + mask->second);
  }
  return result;
}

PictureFiles by_class(const fs::path& root, const std::vector<std::string>& folders) {
  PictureFiles result{as_root(root), {}, {}, {}, folders};
  for (size_t label = 0; label < folders.size(); ++label) {
    const std::vector<std::string> files = pictures_below(root / folders[label]);
    if (files.empty())
      fail_as(ErrorCode::kFile, "the folder ", result.root, folders[label], ", a class, has no pictures");
    for (const std::string& file : files) {
      result.files.push_back(folders[label] + "/" + file);
      result.labels.push_back(static_cast<int64_t>(label));
    }
  }
  return result;
}

// train/ of a folder that holds train/ and another one, or the other one.
std::optional<fs::path> part_of(const fs::path& root, bool for_training) {
  std::error_code error;
  if (!fs::is_directory(root / "train", error)) return std::nullopt;
  for (const char* name : {"val", "valid", "validation", "test"}) {
    if (fs::is_directory(root / name, error)) return root / (for_training ? "train" : name);
  }
  return std::nullopt;
}

// A line of a CSV file: fields between commas, in quotes where they hold commas or quotes, which are doubled (RFC
// 4180).
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  for (std::string& field : fields) {
    const size_t first = field.find_first_not_of(" \t\r"), last = field.find_last_not_of(" \t\r");
    field = first == std::string::npos ? "" : field.substr(first, last - first + 1);
  }
  return fields;
}

size_t column_of(const std::vector<std::string>& header, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found != header.end()) return static_cast<size_t>(found - header.begin());
  }
  return header.size();
}

// Classes that are all whole numbers are labels; others are names, which are sorted.
void set_labels(const std::vector<std::string>& cells, PictureFiles* result) {
  for (const std::string& cell : cells) {
    int64_t label = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), label);
    if (error != std::errc() || end != cell.data() + cell.size()) break;
    result->labels.push_back(label);
  }
  if (result->labels.size() == cells.size()) return;
  result->classes = cells;
  std::sort(result->classes.begin(), result->classes.end());
  result->classes.erase(std::unique(result->classes.begin(), result->classes.end()), result->classes.end());
  result->labels.clear();
  for (const std::string& cell : cells) {
    result->labels.push_back(std::lower_bound(result->classes.begin(), result->classes.end(), cell) -
                             result->classes.begin());
  }
}

}  // namespace

std::shared_ptr<const PictureFiles> find_pictures(const std::string& folder, bool for_training) {
  const fs::path given = fs::path(folder).lexically_normal();
  const fs::path whole = given.has_filename() ? given : given.parent_path();
  const fs::path root = part_of(whole, for_training).value_or(whole);
  if (const std::string boxes = coco_file_in(root.string()); !boxes.empty()) return read_coco(boxes);
  const std::vector<std::string> folders = folders_of(root);
  const auto has = [&](const char* name) { return std::binary_search(folders.begin(), folders.end(), name); };
  if (has("images") && has("masks")) return std::make_shared<const PictureFiles>(with_masks(root));
  const std::vector<std::string> files = pictures_below(root);
  if (files.empty()) {
    if (folders.empty()) return nullptr;
    const auto holds = [&](const std::string& name) { return !pictures_below(root / name).empty(); };  // a link
    if (std::none_of(folders.begin(), folders.end(), holds)) return nullptr;
  }
  const bool is_flat = folders.empty() || std::any_of(files.begin(), files.end(), [](const std::string& file) {
                         return file.find('/') == std::string::npos;
                       });
  if (!is_flat) return std::make_shared<const PictureFiles>(by_class(root, folders));
  return std::make_shared<const PictureFiles>(PictureFiles{as_root(root), files, {}, {}, {}});
}

std::shared_ptr<const PictureFiles> one_picture(const std::string& path) {
  const fs::path file(path);
  const std::string root = file.has_parent_path() ? as_root(file.parent_path()) : "./";
  return std::make_shared<const PictureFiles>(PictureFiles{root, {file.filename().string()}, {}, {}, {}});
}

std::shared_ptr<const PictureFiles> read_picture_table(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<std::string> header, cells;
  auto result = std::make_shared<PictureFiles>(*one_picture(path));
  result->files.clear();
  size_t file_column = 0, class_column = 0;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::vector<std::string> fields = fields_of(line);
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (header.empty()) {
      header = fields;
      file_column = column_of(header, {"path", "file", "filename"});
      class_column = column_of(header, {"class", "label", "labels"});
      if (file_column == header.size()) return nullptr;
      continue;
    }
    if (fields.size() != header.size()) {
      fail_as(ErrorCode::kFile, path, ", line ", number, ": ", fields.size(), " fields, the header has ",
              header.size());
    }
    if (fields[file_column].empty()) fail_as(ErrorCode::kFile, path, ", line ", number, " names no file");
    if (fields[file_column].starts_with("/")) result->root.clear();
    result->files.push_back(fields[file_column]);
    if (class_column < header.size()) cells.push_back(fields[class_column]);
  }
  if (header.empty()) return nullptr;
  if (result->root.empty()) {  // some paths are absolute: all become so
    const std::string folder = one_picture(path)->root;
    for (std::string& name : result->files) name = (fs::path(folder) / name).string();
  }
  if (!cells.empty()) set_labels(cells, result.get());
  return result;
}

bool knows_classes(const PictureFiles& files, const std::vector<std::string>& classes) {
  return classes.empty() || std::all_of(files.classes.begin(), files.classes.end(), [&](const std::string& name) {
           return std::find(classes.begin(), classes.end(), name) != classes.end();
         });
}

std::vector<int64_t> label_order(const PictureFiles& files, const std::vector<std::string>& classes) {
  if (classes.empty() || files.classes.empty() || classes == files.classes) return {};
  std::vector<int64_t> order;
  for (const std::string& name : files.classes) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
      std::string known;
      for (const std::string& other : classes) known += concat(known.empty() ? "" : ", ", other);
      fail_as(ErrorCode::kData, files.root, ": the class '", name,
              "' is none that the model was trained with: ", known);
    }
    order.push_back(found - classes.begin());
  }
  return order;
}

std::vector<int64_t> labels_by(const PictureFiles& files, const std::vector<std::string>& classes) {
  const std::vector<int64_t> order = label_order(files, classes);
  std::vector<int64_t> labels = files.labels;
  for (int64_t& label : labels) label = order.empty() ? label : order[static_cast<size_t>(label)];
  return labels;
}

std::string classes_to_json(const std::vector<std::string>& classes) {
  if (classes.empty()) return "";
  // A name of a folder may hold bytes that are no UTF-8.
  return nlohmann::json(classes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> classes_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> classes;
  if (!json.is_array()) return {};
  for (const auto& name : json) {
    if (!name.is_string()) return {};
    classes.push_back(name.get<std::string>());
  }
  return classes;
}

}  // namespace onnx_train
