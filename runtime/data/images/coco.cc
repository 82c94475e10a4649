// Boxes as COCO's JSON has them (https://cocodataset.org/#format-data), which most tools of annotation write:
//
//   images       [{id, file_name, width, height}]
//   categories   [{id, name}]; the classes 0, 1, ... are they in the order of their ids
//   annotations  [{image_id, category_id, bbox: [left, top, width, height], iscrowd}]; crowds are left out
//
// File names are relative to the JSON's folder, to images/ in it or, as COCO's own annotations/instances_NAME.json has
// it, to ../NAME. All else in the file is passed over.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/files.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// What is read of an object: polygons of a large data set take gigabytes.
bool is_read(const Json& key) {
  static const char* const kKeys[] = {"images", "id",          "file_name", "width",    "height",      "categories",
                                      "name",   "annotations", "bbox",      "image_id", "category_id", "iscrowd"};
  return std::find(std::begin(kKeys), std::end(kKeys), key.get_ref<const std::string&>()) != std::end(kKeys);
}

Json parse(const std::string& path) {
  const auto file = MappedFile::open(path);
  try {
    return Json::parse(file->data(), file->data() + file->size(),
                       [](int, Json::parse_event_t event, const Json& value) {
                         return event != Json::parse_event_t::key || is_read(value);
                       });
  } catch (const Json::exception& error) {
    std::string why = error.what();
    std::replace_if(
        why.begin(), why.end(), [](char c) { return c < ' ' || c > '~'; }, '?');  // bytes of the file
    fail_as(ErrorCode::kFile, path, " is no JSON: ", why);
  }
}

// One element of a list of the file. Functions throw Error that names it.
class Record {
 public:
  Record(const std::string& path, const char* list, size_t index, const Json& value)
      : path_(path), list_(list), index_(index), value_(value) {
    if (!value.is_object()) fail_here("is no object");
  }

  int64_t id(const char* key) const {
    const Json* found = find(key);
    if (!found || !found->is_number_integer() || is_beyond(*found))
      fail_here(concat("has no whole number '", key, "'"));
    return found->get<int64_t>();
  }
  std::string text(const char* key) const {
    const Json* found = find(key);
    if (!found || !found->is_string() || found->get_ref<const std::string&>().empty()) {
      fail_here(concat("has no text '", key, "'"));
    }
    return found->get<std::string>();
  }
  bool flag(const char* key) const {
    const Json* found = find(key);
    return found && (found->is_boolean() ? found->get<bool>() : found->is_number() && found->get<double>() != 0);
  }
  // Left, top, right and bottom.
  LabelledBox box(int64_t label) const {
    const Json* found = find("bbox");
    const bool is_list = found && found->is_array() && found->size() == 4 &&
                         std::all_of(found->begin(), found->end(), [](const Json& x) { return x.is_number(); });
    if (!is_list) fail_here("has no 'bbox' of four numbers, [left, top, width, height]");
    const auto n = found->get<std::vector<double>>();
    const bool is_box =
        std::all_of(n.begin(), n.end(), [](double x) { return std::isfinite(x); }) && n[2] >= 0 && n[3] >= 0;
    if (!is_box) fail_here(concat("has a 'bbox' of ", n[2], " x ", n[3], " pixels at (", n[0], ", ", n[1], ")"));
    return {label, n[0], n[1], n[0] + n[2], n[1] + n[3]};
  }
  [[noreturn]] void fail_here(const std::string& why) const {
    fail_as(ErrorCode::kFile, path_, ": ", list_, "[", index_, "] ", why);
  }

 private:
  const Json* find(const char* key) const {
    const auto found = value_.find(key);
    return found == value_.end() ? nullptr : &*found;
  }
  static bool is_beyond(const Json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max());
  }

  const std::string& path_;
  const char* list_;
  size_t index_;
  const Json& value_;
};

template <typename F>
void for_each_record(const std::string& path, const Json& json, const char* list, const F& f) {
  const auto found = json.find(list);
  if (found == json.end() || !found->is_array()) {
    fail_as(ErrorCode::kFile, path, " has no list '", list, "': boxes are read as COCO's JSON has them, from images, ",
            "annotations and categories");
  }
  for (size_t i = 0; i < found->size(); ++i) f(Record(path, list, i, (*found)[i]));
}

// What the file names of the JSON are relative to: where the first of them is.
std::string folder_of(const std::string& path, const std::string& first) {
  const fs::path file(path), own = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (first.starts_with("/")) return "";
  std::vector<fs::path> places = {own, own / "images"};
  const std::string stem = file.stem().string(), prefix = "instances_";
  if (stem.starts_with(prefix)) places.push_back(own.lexically_normal().parent_path() / stem.substr(prefix.size()));
  std::string tried;
  for (const fs::path& place : places) {
    std::error_code error;
    if (fs::is_regular_file(place / first, error)) return place.string() + "/";
    tried += concat(tried.empty() ? "" : ", ", place.string());
  }
  fail_as(ErrorCode::kFile, path, ": the picture ", first, " is in none of ", tried);
}

std::string counted(int64_t count, const char* what) { return concat(count, " ", what, count == 1 ? "" : "es"); }

}  // namespace

std::string coco_file_in(const std::string& folder) {
  std::error_code error;
  for (const char* name : {"annotations.json", "_annotations.coco.json"}) {
    if (fs::is_regular_file(fs::path(folder) / name, error)) return (fs::path(folder) / name).string();
  }
  return "";
}

std::shared_ptr<const PictureFiles> read_coco(const std::string& path) {
  const Json json = parse(path);
  PictureFiles files;
  BoxFile result{path, {}, {}};
  std::map<int64_t, std::string> names;
  std::set<std::string> known;
  for_each_record(path, json, "categories", [&](const Record& category) {
    const int64_t id = category.id("id");
    const std::string name = category.text("name");
    if (!names.emplace(id, name).second) category.fail_here(concat("has the id ", id, " of another one"));
    if (!known.insert(name).second) category.fail_here(concat("has the name '", name, "' of another one"));
  });
  std::map<int64_t, int64_t> labels;
  for (const auto& [id, name] : names) {
    labels[id] = static_cast<int64_t>(files.classes.size());
    files.classes.push_back(name);
  }
  std::map<int64_t, size_t> samples;
  for_each_record(path, json, "images", [&](const Record& image) {
    const int64_t id = image.id("id"), height = image.id("height"), width = image.id("width");
    if (!samples.emplace(id, files.files.size()).second) image.fail_here(concat("has the id ", id, " of another one"));
    if (height < 1 || width < 1 || width > kMostPixels / height) {
      image.fail_here(concat("has ", width, " x ", height, " pixels; 1 to ", kMostPixels, " are read"));
    }
    files.files.push_back(image.text("file_name"));
    result.sizes.emplace_back(height, width);
  });
  if (files.files.empty()) fail_as(ErrorCode::kFile, path, " names no pictures");
  files.root = path;
  files.folder = folder_of(path, files.files[0]);
  std::error_code error;
  for (size_t i = 0; i < files.files.size(); ++i) {
    if (fs::is_regular_file(files.folder + files.files[i], error)) continue;
    fail_as(ErrorCode::kFile, path, ": images[", i, "]: there is no picture at ", files.folder, files.files[i]);
  }
  result.boxes.resize(files.files.size());
  int64_t crowds = 0, empty = 0;
  for_each_record(path, json, "annotations", [&](const Record& annotation) {
    const int64_t image = annotation.id("image_id"), category = annotation.id("category_id");
    if (!samples.count(image)) annotation.fail_here(concat("is of the image ", image, ", which is not in 'images'"));
    if (!labels.count(category)) {
      annotation.fail_here(concat("is of the category ", category, ", which is not in 'categories'"));
    }
    LabelledBox box = annotation.box(labels[category]);
    const auto [height, width] = result.sizes[samples[image]];
    box.left = std::max(box.left, 0.0);
    box.top = std::max(box.top, 0.0);
    box.right = std::min<double>(box.right, width);
    box.bottom = std::min<double>(box.bottom, height);
    if (annotation.flag("iscrowd")) {
      ++crowds;
    } else if (box.right <= box.left || box.bottom <= box.top) {
      ++empty;
    } else {
      result.boxes[samples[image]].push_back(box);
    }
  });
  if (crowds > 0) files.notes.push_back(concat(path, ": ", counted(crowds, "box"), " of crowds (iscrowd) left out"));
  if (empty > 0)
    files.notes.push_back(concat(path, ": ", counted(empty, "box"), " without area in the picture left out"));
  files.boxes = std::make_shared<const BoxFile>(std::move(result));
  return std::make_shared<const PictureFiles>(std::move(files));
}

}  // namespace onnx_train
