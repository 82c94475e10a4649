// Which files are the samples: pictures with a class, a mask or boxes each. Nothing is decoded here. Plain values;
// functions run on any thread, and throw Error of the code kFile that names the file.
//
//   FOLDER             with annotations.json or _annotations.coco.json: as that file
//   FOLDER             with a folder for each class, as torchvision's ImageFolder; files may be in folders below it.
//                      The classes are sorted by name
//   FOLDER             with images/ and masks/: files of equal names but for the suffix
//   FOLDER             with pictures alone, in order of their names
//   FOLDER             with train/ and val/ (valid/, test/), each one of these
//   X.csv              with a column path (file, filename), relative to the CSV's folder: picture_table.h
//   X.json             boxes, as COCO has them: coco.cc
//   X.png, .jpg, .webp one picture
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/images/picture.h"

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
};

struct PictureFiles {
  std::string root;                  // what messages name: the folder, with a slash, or the CSV or JSON file
  std::string folder;                // what `files` and `masks` are relative to, with a slash; empty: absolute paths
  std::vector<std::string> files;    // one for each sample
  std::vector<std::string> masks;    // likewise, or none
  std::vector<int64_t> labels;       // likewise: the class of each
  std::vector<std::string> classes;  // their names; none if the labels are numbers
  // Labels of a table that are whole numbers: each as it is written there, which may be the name of a class.
  std::map<int64_t, std::string> numbers = {};
  // Or several numbers for each: zeros and ones if there are `classes`, which are then those of the places.
  std::vector<std::vector<float>> targets = {};
  std::shared_ptr<const BoxFile> boxes = nullptr;
  std::vector<uint16_t> mask_values = {};  // what masks hold for the classes 0, 1, ...; none: these numbers
  std::string unlabelled = "";             // of a table: why no column has classes; "" where that is plain
  std::vector<std::string> notes = {};     // what was left out
  int64_t left_out = 0;                    // samples that could not be read
};

// Null where the folder holds no pictures. Pictures of formats that are not read are left out, which is noted.
std::shared_ptr<const PictureFiles> find_pictures(const std::string& folder, bool for_training);
// The folder for tests beside train/ in `folder`, or ""; of a folder with both, a training reads train/ alone.
std::string test_part(const std::string& folder);
std::shared_ptr<const PictureFiles> one_picture(const std::string& path);
// Pictures of a JSON file of boxes, and such a file in a folder; "" if there is none.
std::shared_ptr<const PictureFiles> read_coco(const std::string& path);
std::string coco_file_in(const std::string& folder);

// What --mask-values takes. Throws UsageError for what is no list of different values of a mask.
std::vector<uint16_t> read_mask_values(const std::string& text);
// The classes in a mask of these values, row by row. Throws Error of the code kData for a value that is not among them;
// `name` is that of the file.
void write_mask(const std::vector<uint16_t>& values, const Picture& mask, const std::string& name, int64_t* to);

// Whether all classes of the files are among `classes`, or one of the two has no names.
bool knows_classes(const PictureFiles& files, const std::vector<std::string>& classes);
// What the files' labels are in the order of `classes`, those that a model was trained with; empty: the same, since
// there are no such classes, or these are the files' own. Throws Error for a class that is not among them.
std::vector<int64_t> label_order(const PictureFiles& files, const std::vector<std::string>& classes);
// The targets with the places in that order, and as many as there are.
std::vector<std::vector<float>> targets_by(const PictureFiles& files, const std::vector<std::string>& classes);
// The labels in that order. Whole numbers of a table that are all names of `classes` are these; where none of them is,
// they are places. Throws Error where only some are. Negative ones, which losses ignore, stay.
std::vector<int64_t> labels_by(const PictureFiles& files, const std::vector<std::string>& classes);

}  // namespace onnx_train
