// Which files are the samples: pictures with a class, a mask or boxes each. Nothing is decoded here. Plain values;
// functions run on any thread, and throw Error of the code kFile that names the file.
//
//   FOLDER             with annotations.json or _annotations.coco.json: as that file
//   FOLDER             with a folder for each class, as torchvision's ImageFolder; files may be in folders below it.
//                      The classes are sorted by name
//   FOLDER             with images/ and masks/: files of equal names but for the suffix
//   FOLDER             with pictures alone, in order of their names
//   FOLDER             with train/ and val/ (valid/, test/), each one of these
//   X.csv              with a column path (file, filename), relative to the CSV's folder, and class (label)
//   X.json             boxes, as COCO has them: coco.cc
//   X.png, .jpg, .webp one picture
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace onnx_train {

// A box in a picture, in pixels from its top left corner, and the class of what it holds.
struct LabelledBox {
  int64_t label;
  double left, top, right, bottom;
};

// What one file says of all samples.
struct BoxFile {
  std::string path;
  std::vector<std::vector<LabelledBox>> boxes;  // of each sample
  std::vector<std::pair<int, int>> sizes;       // height and width of each picture
  std::vector<std::string> notes;               // what was left out
};

struct PictureFiles {
  std::string root;                  // what `files` and `masks` are relative to; ends with a slash
  std::vector<std::string> files;    // one for each sample
  std::vector<std::string> masks;    // likewise, or none
  std::vector<int64_t> labels;       // likewise: the class of each
  std::vector<std::string> classes;  // their names; none if the labels are numbers
  std::shared_ptr<const BoxFile> boxes = nullptr;
};

// Null where the folder holds no pictures.
std::shared_ptr<const PictureFiles> find_pictures(const std::string& folder, bool for_training);
// Null where the first line of the CSV file names no column for paths.
std::shared_ptr<const PictureFiles> read_picture_table(const std::string& path);
std::shared_ptr<const PictureFiles> one_picture(const std::string& path);
// Pictures of a JSON file of boxes, and such a file in a folder; "" if there is none.
std::shared_ptr<const PictureFiles> read_coco(const std::string& path);
std::string coco_file_in(const std::string& folder);

// Whether all classes of the files are among `classes`, or one of the two has no names.
bool knows_classes(const PictureFiles& files, const std::vector<std::string>& classes);
// What the files' labels are in the order of `classes`, those that a model was trained with; empty: the same, since
// there are no such classes, or these are the files' own. Throws Error for a class that is not among them.
std::vector<int64_t> label_order(const PictureFiles& files, const std::vector<std::string>& classes);
// The labels in that order.
std::vector<int64_t> labels_by(const PictureFiles& files, const std::vector<std::string>& classes);

// As the metadata of a model keep them: a JSON list.
std::string classes_to_json(const std::vector<std::string>& classes);
std::vector<std::string> classes_from_json(const std::string& text);  // none for what is no list of texts

}  // namespace onnx_train
