#include "runtime/data/images/files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/support/options.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

std::string as_root(const fs::path& folder) { return folder.string() + "/"; }

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

// The pictures below a folder, relative to it, sorted by name.
struct FoundFiles {
  std::vector<std::string> files;
  std::vector<std::string> others;  // of formats that are not read, with the folder
};

// A link to a folder above it does not end: links to folders are followed at the first level alone, where classes are.
FoundFiles pictures_below(const fs::path& root) {
  FoundFiles found;
  std::error_code error;
  fs::recursive_directory_iterator it(root, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (is_hidden(it->path())) {
      it.disable_recursion_pending();
    } else if (is_picture_name(it->path().string()) && !it->is_directory(error)) {
      found.files.push_back(it->path().lexically_relative(root).string());
    } else if (is_other_picture_name(it->path().string())) {
      found.others.push_back(it->path().string());
    }
  }
  if (error) fail_as(ErrorCode::kFile, "cannot read the folder ", root.string(), ": ", error.message());
  std::sort(found.files.begin(), found.files.end());
  std::sort(found.others.begin(), found.others.end());
  return found;
}

void note_others(const std::vector<std::string>& others, PictureFiles* result) {
  if (others.empty()) return;
  const std::string what = others.size() == 1
                               ? "a picture of another format is left out, "
                               : concat(others.size(), " pictures of other formats are left out, the first is ");
  result->notes.push_back(concat(what, others[0], ": PNG, JPEG and WebP are read"));
}

// Where there are pictures, but none that can be read.
void refuse_others(const std::string& folder, const std::vector<std::string>& others) {
  if (others.empty()) return;
  fail_as(ErrorCode::kFile, "all pictures in ", folder, " are of other formats, the first is ", others[0],
          ": convert them to PNG, JPEG or WebP");
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

PictureFiles files_in(const fs::path& root) {
  PictureFiles result;
  result.root = result.folder = as_root(root);
  return result;
}

PictureFiles with_masks(const fs::path& root) {
  PictureFiles result = files_in(root);
  std::map<std::string, std::string> masks;
  for (const std::string& mask : pictures_below(root / "masks").files) {
    masks[fs::path(mask).replace_extension().string()] = mask;
  }
  const FoundFiles images = pictures_below(root / "images");
  if (images.files.empty()) refuse_others(result.root + "images", images.others);
  for (const std::string& file : images.files) {
    const auto mask = masks.find(fs::path(file).replace_extension().string());
    if (mask == masks.end())
      fail_as(ErrorCode::kFile, result.root, "images/", file, " has no mask in ", result.root, "masks");
    result.files.push_back("images/" + file);
    result.masks.push_back("masks/" + mask->second);
  }
  note_others(images.others, &result);
  return result;
}

PictureFiles by_class(const fs::path& root, const std::vector<std::string>& folders) {
  PictureFiles result = files_in(root);
  result.classes = folders;
  std::vector<std::string> others;
  for (size_t label = 0; label < folders.size(); ++label) {
    const FoundFiles found = pictures_below(root / folders[label]);
    const std::string folder = result.root + folders[label];
    if (found.files.empty()) {
      refuse_others(folder, found.others);
      fail_as(ErrorCode::kFile, "the folder ", folder,
              ", a class, has no pictures: put some into it (PNG, JPEG or WebP), or remove it");
    }
    others.insert(others.end(), found.others.begin(), found.others.end());
    for (const std::string& file : found.files) {
      result.files.push_back(folders[label] + "/" + file);
      result.labels.push_back(static_cast<int64_t>(label));
    }
  }
  note_others(others, &result);
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

}  // namespace

std::string test_part(const std::string& folder) {
  const std::optional<fs::path> part = part_of(fs::path(folder).lexically_normal(), /*for_training=*/false);
  return part ? part->string() : "";
}

std::shared_ptr<const PictureFiles> find_pictures(const std::string& folder, bool for_training) {
  const fs::path given = fs::path(folder).lexically_normal();
  const fs::path whole = given.has_filename() ? given : given.parent_path();
  const fs::path root = part_of(whole, for_training).value_or(whole);
  if (const std::string boxes = coco_file_in(root.string()); !boxes.empty()) return read_coco(boxes);
  const std::vector<std::string> folders = folders_of(root);
  const auto has = [&](const char* name) { return std::binary_search(folders.begin(), folders.end(), name); };
  if (has("images") && has("masks")) return std::make_shared<const PictureFiles>(with_masks(root));
  const auto [files, others] = pictures_below(root);
  if (files.empty()) {
    const auto holds = [&](const std::string& name) { return !pictures_below(root / name).files.empty(); };  // a link
    if (std::none_of(folders.begin(), folders.end(), holds)) {
      refuse_others(as_root(root), others);
      return nullptr;
    }
  }
  const bool is_flat = folders.empty() || std::any_of(files.begin(), files.end(), [](const std::string& file) {
                         return file.find('/') == std::string::npos;
                       });
  if (!is_flat) return std::make_shared<const PictureFiles>(by_class(root, folders));
  PictureFiles result = files_in(root);
  result.files = files;
  note_others(others, &result);
  return std::make_shared<const PictureFiles>(std::move(result));
}

std::shared_ptr<const PictureFiles> one_picture(const std::string& path) {
  const fs::path file(path);
  PictureFiles result;
  result.root = path;
  result.folder = file.has_parent_path() ? as_root(file.parent_path()) : "./";
  result.files = {file.filename().string()};
  return std::make_shared<const PictureFiles>(std::move(result));
}

std::vector<uint16_t> read_mask_values(const std::string& text) {
  std::vector<uint16_t> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    uint16_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size())
      throw UsageError(concat("--mask-values: '", part, "' is no value of a mask, 0 to 65535: 0,255"));
    if (std::count(values.begin(), values.end(), value) > 0)
      throw UsageError(concat("--mask-values: ", value, " is given twice"));
    values.push_back(value);
  }
  return values;
}

void write_mask(const std::vector<uint16_t>& values, const Picture& mask, const std::string& name, int64_t* to) {
  for (size_t i = 0; i < mask.bytes.size(); i += kMaskChannels) {
    const int64_t value = mask.bytes[i] << 8 | mask.bytes[i + 1];
    const auto found = std::find(values.begin(), values.end(), value);
    if (!values.empty() && found == values.end())
      fail_as(ErrorCode::kData, name, " holds ", value, ", which is not among --mask-values");
    *to++ = values.empty() ? value : found - values.begin();
  }
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
      fail_as(ErrorCode::kPictureClass, files.root, ": the class '", name,
              "' is none that the model was trained with: ", known);
    }
    order.push_back(found - classes.begin());
  }
  return order;
}

namespace {

std::vector<int64_t> numbers_by(const PictureFiles& files, const std::vector<std::string>& classes) {
  std::map<int64_t, int64_t> places;
  const std::string *named = nullptr, *other = nullptr;
  for (const auto& [number, text] : files.numbers) {
    if (number < 0) continue;
    const auto found = std::find(classes.begin(), classes.end(), text);
    (found == classes.end() ? other : named) = &text;
    if (found != classes.end()) places[number] = found - classes.begin();
  }
  if (named && other) {
    std::string known;
    for (const std::string& name : classes) known += concat(known.empty() ? "" : ", ", name);
    fail_as(ErrorCode::kPictureClass, files.root, ": the class ", *named,
            " is the name of one that the model was trained with, ", *other, " is none (", known,
            "): write these names, or numbers from 0 on none of which is a name");
  }
  std::vector<int64_t> labels = files.labels;
  for (int64_t& label : labels) {
    if (const auto place = places.find(label); place != places.end()) label = place->second;
  }
  return labels;
}

}  // namespace

std::vector<int64_t> labels_by(const PictureFiles& files, const std::vector<std::string>& classes) {
  if (!files.numbers.empty()) return numbers_by(files, classes);
  const std::vector<int64_t> order = label_order(files, classes);
  std::vector<int64_t> labels = files.labels;
  for (int64_t& label : labels) label = order.empty() ? label : order[static_cast<size_t>(label)];
  return labels;
}

std::vector<std::vector<float>> targets_by(const PictureFiles& files, const std::vector<std::string>& classes) {
  const std::vector<int64_t> order = label_order(files, classes);
  if (order.empty()) return files.targets;
  std::vector<std::vector<float>> targets;
  for (const std::vector<float>& row : files.targets) {
    std::vector<float>& to = targets.emplace_back(classes.size(), 0.f);
    for (size_t i = 0; i < row.size(); ++i) to[static_cast<size_t>(order[i])] = row[i];
  }
  return targets;
}

}  // namespace onnx_train
