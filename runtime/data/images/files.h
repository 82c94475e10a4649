// Which files are the samples: pictures with a class or a mask each. Nothing is decoded here. Plain values; functions
// run on any thread, and throw Error of the code kFile that names the file.
//
//   FOLDER             with a folder for each class, as torchvision's ImageFolder; files may be in folders below it.
//   The
//                      classes are sorted by name
//   FOLDER             with images/ and masks/: files of equal names but for the suffix
//   FOLDER             with pictures alone, in order of their names
//   FOLDER             with train/ and val/ (valid/, test/), each one of these
//   X.csv              with a column path (file, filename), relative to the CSV's folder, and class (label)
//   X.png, .jpg, .webp one picture
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace onnx_train {

struct PictureFiles {
  std::string root;                  // what `files` and `masks` are relative to; ends with a slash
  std::vector<std::string> files;    // one for each sample
  std::vector<std::string> masks;    // likewise, or none
  std::vector<int64_t> labels;       // likewise: the class of each
  std::vector<std::string> classes;  // their names; none if the labels are numbers
};

// Null where the folder holds no pictures.
std::shared_ptr<const PictureFiles> find_pictures(const std::string& folder, bool for_training);
// Null where the first line of the CSV file names no column for paths.
std::shared_ptr<const PictureFiles> read_picture_table(const std::string& path);
std::shared_ptr<const PictureFiles> one_picture(const std::string& path);

// Whether all classes of the files are among `classes`, or one of the two has no names.
bool knows_classes(const PictureFiles& files, const std::vector<std::string>& classes);
// The labels by the order of `classes`, those that a model was trained with; the files' own where there are none.
// Throws Error for a class that is not among them.
std::vector<int64_t> labels_by(const PictureFiles& files, const std::vector<std::string>& classes);

// As the metadata of a model keep them: a JSON list.
std::string classes_to_json(const std::vector<std::string>& classes);
std::vector<std::string> classes_from_json(const std::string& text);  // none for what is no list of texts

}  // namespace onnx_train
