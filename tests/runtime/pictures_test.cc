// Pictures as rows of a dataset: which files, in which layout, changed at random in the same way each time. That pixels
// are those of Pillow is tested in tests/python/images.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include <png.h>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/gather_ahead.h"
#include "runtime/data/images/augment.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/tables/picture_table.h"
#include "runtime/training/loss_guess.h"
#include "tests/support/empty_model.h"
#include "tests/support/error_of.h"
#include "tests/support/reference_work.h"

namespace onnx_train::pictures_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

InputSpec input_of(const char* name, DType dtype, const Dims& dims, bool from_loss) {
  InputSpec spec;
  spec.name = name;
  spec.type.dtype = dtype;
  spec.type.dims = dims;
  spec.from_loss = from_loss;
  return spec;
}

InputSpec target(DType dtype, const Dims& dims) { return input_of("labels", dtype, dims, true); }
InputSpec pictures(const Dims& dims) { return input_of("x", DType::kFloat, dims, false); }
const InputSpec kLabels = target(DType::kInt64, {"N"}), kProbabilities = target(DType::kFloat, {"N", 3});
const InputSpec kPictures = pictures({"N", 3, 4, 6});

// A folder of this test's own.
std::string folder(const std::string& name) {
  const std::string path = testing::TempDir() + "pictures_" + name + "/";
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

void write_png_file(const std::string& path, int height, int width, int channels, const std::vector<uint8_t>& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  ASSERT_TRUE(png_image_write_to_file(&image, path.c_str(), 0, bytes.data(), 0, nullptr)) << path;
}

// Pixel (y, x) of channel c is `start` + 10 y + x + 70 c.
std::vector<uint8_t> pixels(int start, int height = 4, int width = 6, int channels = 3) {
  std::vector<uint8_t> bytes;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) bytes.push_back(static_cast<uint8_t>(start + 10 * y + x + 70 * c));
    }
  }
  return bytes;
}

// Two pictures of "cat", one of them in a folder of its own, and one each of "ant" and "dog".
std::string classes_folder(const std::string& name) {
  const std::string root = folder(name);
  write_png_file(root + "cat/b.png", 4, 6, 3, pixels(2));
  write_png_file(root + "cat/a/z.png", 4, 6, 3, pixels(1));
  write_png_file(root + "dog/a.png", 4, 6, 3, pixels(3));
  write_png_file(root + "ant/a.png", 4, 6, 3, pixels(0));
  return root;
}

std::shared_ptr<const PictureFiles> table_of(const std::string& path, const std::vector<InputSpec>& inputs,
                                             const DataOptions& options = {}) {
  const auto target = std::find_if(inputs.begin(), inputs.end(), [](const InputSpec& spec) { return spec.from_loss; });
  return read_picture_table(read_csv(path), target == inputs.end() ? nullptr : &*target, options, {}).files;
}

Dataset dataset(const std::string& path, const std::vector<InputSpec>& inputs,
                const std::string& preprocess = "scale(1)", const std::string& augment = "", DataNotes* notes = nullptr,
                const std::vector<std::string>& classes = {}) {
  DataNotes unused;
  const bool for_training = true;
  DataArrays data;
  data.pictures = path.ends_with(".csv") ? table_of(path, inputs) : find_pictures(path, for_training);
  Model model;
  if (!classes.empty()) model.set_metadata(kClassNames, classes_to_json(classes));
  return make_dataset(data, inputs, preprocess.empty() ? Preprocess() : Preprocess::of_steps(preprocess, inputs), model,
                      augment, /*trains=*/false, notes ? notes : &unused);
}

DataArrays array_of(const Tensor& array) { return arrays_of({{"x", array}}); }

std::vector<double> row(const Dataset& data, int64_t sample, const std::string& name,
                        const std::optional<AugmentKey>& key = std::nullopt) {
  TensorMap batch;
  data.gather(&sample, 1, &batch, key ? &*key : nullptr);
  std::vector<double> values;
  for (int64_t i = 0; i < batch.at(name).size(); ++i) values.push_back(batch.at(name).at(i));
  return values;
}

TEST(Pictures, AFolderIsAClassSortedByName) {
  const Dataset data = dataset(classes_folder("classes"), {kPictures, kLabels});
  EXPECT_EQ(data.num_samples(), 4);
  EXPECT_THAT(data.class_names(), ElementsAre("ant", "cat", "dog"));
  std::vector<double> labels;
  for (int64_t i = 0; i < 4; ++i) labels.push_back(row(data, i, "labels")[0]);
  EXPECT_THAT(labels, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(data.origin(1), testing::EndsWith("classes/cat/a/z.png"));
  // Channels first: the second row of green.
  const std::vector<double> x = row(data, 2, "x");
  EXPECT_EQ(x[24 + 6], 2 + 10 + 70);
  EXPECT_EQ(x[24 + 7], 2 + 11 + 70);
}

TEST(Pictures, ALayoutIsThatOfTheInput) {
  const std::string root = classes_folder("layouts");
  const std::vector<double> first = row(dataset(root, {kPictures, kLabels}), 3, "x");
  const std::vector<double> last = row(dataset(root, {pictures({"N", 4, 6, 3}), kLabels}), 3, "x");
  const std::vector<double> grey = row(dataset(root, {pictures({"N", 4, 6}), kLabels}), 3, "x");
  const std::vector<double> bgr = row(dataset(root, {kPictures, kLabels}, "scale(1), bgr"), 3, "x");
  for (size_t i = 0; i < 24; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(last[3 * i + c], first[24 * c + i]);
      EXPECT_EQ(bgr[24 * (2 - c) + i], first[24 * c + i]);
    }
    EXPECT_NEAR(grey[i], 0.299 * first[i] + 0.587 * first[24 + i] + 0.114 * first[48 + i], 0.51);
  }
  DataNotes notes;
  dataset(root, {pictures({"N", 3, 3, 3}), kLabels}, "resize(3, 3), scale(1)", "", &notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("channels are taken to come first"));
  EXPECT_THAT(error_of([&] { dataset(root, {pictures({"N", 12}), kLabels}); }), HasSubstr("'x' takes no pictures"));
  EXPECT_THAT(error_of([&] { dataset(root, {pictures({"N", 5, 4, 6}), kLabels}); }), HasSubstr("1 or 3 channels"));
}

TEST(Pictures, AnInputSuggestsTheStepsWhereNoneAreGiven) {
  const std::string root = classes_folder("defaults");
  DataNotes notes;
  const Dataset data = dataset(root, {kPictures, kLabels}, "", "", &notes);
  EXPECT_EQ(data.preprocess().text(), "x: resize(4, 6), scale(1/255)");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("'x' by resize(4, 6), scale(1/255), for it is float[N,3,4,6]"));
  const Dataset normal = dataset(root, {kPictures, kLabels}, "crop(4, 6), normalize(mean=(0, 0.5, 0), std=(1, 2, 1,))");
  EXPECT_EQ(normal.preprocess().text(), "x: crop(4, 6), scale(1/255), normalize(mean=(0, 0.5, 0), std=(1, 2, 1))");
  EXPECT_NEAR(row(normal, 0, "x")[24], (70.0 / 255 - 0.5) / 2, 1e-6);
  EXPECT_THAT(error_of([&] {
                dataset(root, {pictures({"N", 3, "H", "W"}), kLabels});
              }),
              HasSubstr("leaves the size of pictures open"));
  EXPECT_THAT(error_of([&] { dataset(root, {kPictures, kLabels}, "resize(0)"); }), HasSubstr("whole numbers from 1"));
  EXPECT_THAT(error_of([&] { dataset(root, {kPictures, kLabels}, "warp(3)"); }), HasSubstr("'warp'; there are scale"));
}

constexpr const char* kChanges =
    "random_resized_crop(4, 6), flip, vflip, rotate(20), jitter(0.4, 0.4, 0.4, 0.1), erase(0.5), randaugment(2, 9)";

TEST(Pictures, AreChangedByTheirSeedEpochAndNumberAlone) {
  const Dataset data = dataset(classes_folder("augmented"), {kPictures, kLabels}, "", kChanges);
  const AugmentKey key{7, 3};
  const std::vector<double> alone = row(data, 2, "x", key);
  const int64_t rows[] = {3, 2, 0};
  TensorMap batch;
  data.gather(rows, 3, &batch, &key);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(batch.at("x").at(72 + static_cast<int64_t>(i)), alone[i]);
  EXPECT_NE(row(data, 2, "x", AugmentKey{7, 4}), alone);
  EXPECT_NE(row(data, 2, "x", AugmentKey{8, 3}), alone);
  EXPECT_EQ(row(data, 2, "x"),
            row(dataset(testing::TempDir() + "pictures_augmented", {kPictures, kLabels}, ""), 2, "x"));
}

TEST(Pictures, MasksMoveWithThem) {
  const std::string root = folder("masks");
  std::vector<uint8_t> classes = pixels(1, 8, 9, 1), colours;
  for (const uint8_t value : classes) colours.insert(colours.end(), {value, value, value});
  write_png_file(root + "images/one.png", 8, 9, 3, colours);
  write_png_file(root + "masks/one.png", 8, 9, 1, classes);
  const InputSpec classes_of = target(DType::kInt64, {"N", 5, 6});
  const Dataset data = dataset(root, {pictures({"N", 3, 5, 6}), classes_of}, "crop(5, 6), scale(1)",
                               "random_crop, pad_crop(2), flip, vflip");
  std::set<std::vector<double>> seen;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::vector<double> mask = row(data, 0, "labels", AugmentKey{1, epoch});
    std::vector<double> x = row(data, 0, "x", AugmentKey{1, epoch});
    x.resize(30);
    EXPECT_EQ(mask, x);
    seen.insert(mask);
  }
  EXPECT_GT(seen.size(), 10u);
  write_png_file(root + "masks/one.png", 8, 8, 1, pixels(1, 8, 8, 1));
  EXPECT_THAT(error_of([&] {
                row(dataset(root, {pictures({"N", 3, 5, 6}), classes_of}, "crop(5, 6)"), 0, "x");
              }),
              HasSubstr("has 8 x 8 pixels"));
  fs::remove(root + "masks/one.png");
  EXPECT_THAT(error_of([&] { find_pictures(root, true); }), HasSubstr("images/one.png has no mask"));
}

// The sizes of masks are unknown until they are read.
TEST(Pictures, MasksGuessTheLossOfAModelOfPixels) {
  const std::string root = folder("guessed_masks");
  write_png_file(root + "images/one.png", 5, 6, 3, pixels(3, 5, 6, 3));
  write_png_file(root + "masks/one.png", 5, 6, 1, pixels(1, 5, 6, 1));
  Model model = empty_model();
  Builder b(model.graph.get());
  const Var x = b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N", 3, 5, 6}}));
  model.graph->add_output(b.op("Neg", {x}).value());
  EXPECT_EQ(guess_loss(model, root, ReadOptions{{}, DataRole::kTrain, {}, {}}).loss, "cross_entropy");
}

TEST(Pictures, AreMixedWithTheirClasses) {
  const std::string root = classes_folder("mixed");
  for (const std::string augment : {"mixup(1)", "cutmix(1)"}) {
    const Dataset data = dataset(root, {kPictures, kProbabilities}, "scale(1)", augment);
    int mixed = 0;
    for (int64_t epoch = 0; epoch < 12; ++epoch) {
      const AugmentKey key{1, epoch};
      const std::vector<double> x = row(data, 0, "x", key), labels = row(data, 0, "labels", key);
      EXPECT_NEAR(labels[0] + labels[1] + labels[2], 1, 1e-6);
      mixed += labels[0] < 1;
      double sum = 0;  // pictures differ by their start alone: by 0 to 3
      for (const double value : x) sum += value;
      double own = 0;
      for (const uint8_t value : pixels(0)) own += value;
      const double other = (sum - own) / 72, expected = 3 * labels[2];
      // Of a cat there are two pictures, whose starts are 1 and 2.
      EXPECT_TRUE(std::abs(other - expected - labels[1]) < 1e-3 || std::abs(other - expected - 2 * labels[1]) < 1e-3);
    }
    EXPECT_GT(mixed, 3);
  }
  EXPECT_THAT(row(dataset(root, {kPictures, kProbabilities}), 1, "labels"), ElementsAre(0, 1, 0));
  EXPECT_THAT(error_of([&] { dataset(root, {kPictures, kLabels}, "", "mixup(1)"); }), HasSubstr("probabilities=true"));
}

TEST(Pictures, ArraysOfBytesAreChangedAlike) {
  Tensor last(DType::kUint8, {1, 4, 6, 3}), first(DType::kUint8, {1, 3, 4, 6});
  const std::vector<uint8_t> bytes = pixels(5);
  std::copy(bytes.begin(), bytes.end(), last.data<uint8_t>());
  for (int64_t i = 0; i < 72; ++i) first.data<uint8_t>()[i % 3 * 24 + i / 3] = bytes[static_cast<size_t>(i)];
  const std::string root = folder("as_array");
  write_png_file(root + "c/a.png", 4, 6, 3, bytes);
  const std::vector<InputSpec> inputs = {kPictures};
  const AugmentKey key{3, 1};
  const std::vector<double> wanted =
      row(dataset(root, inputs, "crop(4, 6), scale(1/255)", "flip, pad_crop(2)"), 0, "x", key);
  for (const Tensor& array : {first, last}) {
    DataNotes notes;
    const Dataset data = make_dataset(array_of(array), inputs, Preprocess({"1/255"}, inputs), Model(),
                                      "flip, pad_crop(2)", true, &notes);
    EXPECT_EQ(row(data, 0, "x", key), wanted);
  }
  DataNotes notes;
  EXPECT_THAT(error_of([&] {
                make_dataset(array_of(Tensor(DType::kFloat, {1, 3, 4, 6})), inputs, {}, Model(), "flip", true, &notes);
              }),
              HasSubstr("arrays of their bytes"));
}

TEST(Pictures, ATableNamesThem) {
  const std::string root = classes_folder("table");
  std::ofstream(root + "t.csv") << "id,path,class\n1,\"dog/a.png\",\"big, wild\"\n2,ant/a.png,small\n";
  const Dataset data = dataset(root + "t.csv", {kPictures, kLabels});
  EXPECT_THAT(data.class_names(), ElementsAre("big, wild", "small"));
  EXPECT_EQ(row(data, 0, "x")[0], 3);
  std::ofstream(root + "n.csv") << "file,label\nant/a.png,2\ndog/a.png,0\n";
  EXPECT_EQ(row(dataset(root + "n.csv", {kPictures, kLabels}), 0, "labels")[0], 2);
  std::ofstream(root + "x.csv") << "x0,x1,labels\n1,2,0\n";
  EXPECT_FALSE(is_picture_table(read_csv(root + "x.csv")));
  // Evaluation by the classes of the training, whichever of them are there.
  EXPECT_EQ(row(dataset(root + "t.csv", {kPictures, kLabels}, "scale(1)", "", nullptr, {"other", "small", "big, wild"}),
                0, "labels")[0],
            2);
  EXPECT_THAT(error_of([&] {
                dataset(root + "t.csv", {kPictures, kLabels}, "scale(1)", "", nullptr, {"small"});
              }),
              HasSubstr("the class 'big, wild' is none that the model was trained with: small"));
}

TEST(Pictures, ABlankClassOfATableIsAnErrorThatNamesItsLine) {
  const std::string root = classes_folder("blank");
  for (const char* blank : {"", "  ", "\"\""}) {
    for (const char* label : {"dog", "1"}) {
      std::ofstream(root + "t.csv") << "path,class\ndog/a.png," << label << "\nant/a.png," << blank << "\n";
      EXPECT_THAT(error_of([&] {
                    dataset(root + "t.csv", {kPictures, kLabels});
                  }),
                  HasSubstr("blank/t.csv, line 3, column 'class' is blank: write the picture's class"));
      EXPECT_EQ(dataset(root + "t.csv", {kPictures}).num_samples(), 2) << "predict needs none";
    }
  }
}

TEST(Pictures, WholeNumbersOfATableAreNamesOfClassesWhereTheModelHasSuchNames) {
  const std::string root = classes_folder("numbers");
  const auto labels = [&](const std::string& first, const std::string& second, const std::vector<std::string>& classes,
                          DataNotes* notes = nullptr) {
    std::ofstream(root + "t.csv") << "path,class\ndog/a.png," << first << "\nant/a.png," << second << "\n";
    const Dataset data = dataset(root + "t.csv", {kPictures, kLabels}, "scale(1)", "", notes, classes);
    return std::vector{row(data, 0, "labels")[0], row(data, 1, "labels")[0]};
  };
  DataNotes notes;
  EXPECT_THAT(labels("10", "2", {"0", "1", "10", "2"}, &notes), ElementsAre(2, 3)) << "folders, sorted as texts";
  EXPECT_THAT(notes, testing::Contains(HasSubstr("its numbers are names of the model's classes")));
  EXPECT_THAT(labels("07", "-1", {"01", "07"}), ElementsAre(1, -1));
  EXPECT_THAT(labels("1", "0", {"cat", "dog"}), ElementsAre(1, 0)) << "none is a name: they are places";
  EXPECT_THAT(labels("10", "2", {}), ElementsAre(10, 2));
  EXPECT_THAT(error_of([&] {
                labels("0", "2", {"1", "2", "3"});
              }),
              HasSubstr("the class 2 is the name of one that the model was trained with, 0 is none (1, 2, 3)"));
}

TEST(Pictures, ATableMayGiveSeveralClassesOrNumbers) {
  const std::string root = classes_folder("several");
  const std::vector<InputSpec> inputs = {kPictures, kProbabilities};
  const auto targets = [&](const std::string& csv, const DataOptions& options = {}) {
    std::ofstream(root + "t.csv") << csv;
    return table_of(root + "t.csv", inputs, options);
  };
  using Rows = std::vector<std::vector<float>>;
  DataOptions separated;
  separated.label_separator = ";";
  const auto names = targets("path,labels\ndog/a.png,wild; big\nant/a.png,\ncat/b.png,big;tame;big\n", separated);
  EXPECT_THAT(names->classes, ElementsAre("big", "tame", "wild"));
  EXPECT_EQ(names->targets, (Rows{{1, 0, 1}, {0, 0, 0}, {1, 1, 0}}));
  EXPECT_EQ(targets_by(*names, {"wild", "none", "tame", "big"}), (Rows{{1, 0, 0, 1}, {0, 0, 0, 0}, {0, 0, 1, 1}}));

  const auto flags = targets("wild,path,big\n1,dog/a.png,0\ntrue,ant/a.png,1\n");
  EXPECT_THAT(flags->classes, ElementsAre("wild", "big"));
  EXPECT_EQ(flags->targets, (Rows{{1, 0}, {1, 1}}));

  DataOptions columns;
  columns.columns = {"labels=y", "x"};
  const auto numbers = targets("path,x,y,class\ndog/a.png,1.5,2,a\nant/a.png,-3,4,b\n", columns);
  EXPECT_TRUE(numbers->classes.empty() && numbers->labels.empty());
  EXPECT_EQ(numbers->targets, (Rows{{2, 1.5}, {4, -3}}));
  EXPECT_THAT(error_of([&] { targets("path,x,y\ndog/a.png,1,2\nant/a.png,1,big\n", columns); }),
              HasSubstr("t.csv, line 3, column 'y': 'big' is not a number"));
  EXPECT_THAT(error_of([&] { targets("path,x\ndog/a.png,1\n", columns); }), HasSubstr("no column 'y' for 'labels'"));
  EXPECT_TRUE(targets("path,id\ndog/a.png,1\nant/a.png,2\n")->targets.empty());  // what they mean is not said
}

TEST(Pictures, AFolderMayHoldTrainingAndValidation) {
  const std::string root = folder("parts");
  write_png_file(root + "train/a/1.png", 4, 6, 3, pixels(1));
  write_png_file(root + "val/a/2.png", 4, 6, 3, pixels(2));
  EXPECT_THAT(find_pictures(root, true)->files, ElementsAre("a/1.png"));
  EXPECT_THAT(find_pictures(root, false)->files, ElementsAre("a/2.png"));
  EXPECT_EQ(find_pictures(folder("nothing"), true), nullptr);
  fs::create_directories(root + "train/b");
  EXPECT_THAT(error_of([&] { find_pictures(root, true); }),
              HasSubstr("train/b, a class, has no pictures: put some into it (PNG, JPEG or WebP), or remove it"));
}

TEST(Pictures, OfOtherFormatsAreLeftOutWithANote) {
  const std::string root = classes_folder("formats");
  DataNotes notes;
  dataset(root, {kPictures, kLabels}, "crop(4, 6), scale(1)", "", &notes);
  EXPECT_TRUE(notes.empty());
  std::ofstream(root + "dog/notes.txt") << "no picture";
  std::ofstream(root + "dog/b.GIF") << "GIF89a";
  dataset(root, {kPictures, kLabels}, "crop(4, 6), scale(1)", "", &notes);
  EXPECT_THAT(notes, ElementsAre("a picture of another format is left out, " + root +
                                 "dog/b.GIF: PNG, JPEG and WebP are read"));
  std::ofstream(root + "cat/a/b.bmp") << "BM";
  notes.clear();
  EXPECT_EQ(dataset(root, {kPictures, kLabels}, "crop(4, 6), scale(1)", "", &notes).num_samples(), 4);
  EXPECT_THAT(notes, ElementsAre("2 pictures of other formats are left out, the first is " + root +
                                 "cat/a/b.bmp: PNG, JPEG and WebP are read"));
  notes.clear();
  dataset(root + "dog", {kPictures}, "crop(4, 6), scale(1)", "", &notes);  // without classes
  EXPECT_EQ(notes.size(), 1u);
  fs::remove(root + "dog/a.png");
  EXPECT_THAT(error_of([&] { find_pictures(root, true); }),
              HasSubstr("the first is " + root + "dog/b.GIF: convert them"));
  EXPECT_THAT(error_of([&] { find_pictures(root + "dog", true); }), HasSubstr("dog/b.GIF: convert them"));
}

TEST(Pictures, NamesOfClassesOfBoxesAreComparedInLinearTime) {
  const std::string path = testing::TempDir() + "pictures_many.json";
  std::ofstream file(path);
  file << R"({"images": [], "annotations": [], "categories": [)";
  for (int i = 0; i < 60'000; ++i) file << (i ? "," : "") << R"({"id": )" << i << R"(, "name": "class )" << i << "\"}";
  file << "]}" << std::flush;
  const std::clock_t start = std::clock();
  EXPECT_THAT(error_of([&] { read_coco(path); }), HasSubstr("names no pictures"));
  EXPECT_LT(milliseconds_since(start), 3 * second_of_this_machine());  // where time is square it takes a minute
}

TEST(Pictures, ErrorsNameTheFileThatWasGiven) {
  const std::string root = classes_folder("given");
  std::ofstream(root + "t.csv") << "path,class\ndog/a.png,wild\n";
  std::ofstream(root + "plain.csv") << "path\ndog/a.png\n";
  EXPECT_THAT(error_of([&] {
                dataset(root + "t.csv", {kPictures, kLabels}, "scale(1)", "", nullptr, {"tame"});
              }),
              HasSubstr(root + "t.csv: the class 'wild'"));
  EXPECT_THAT(error_of([&] {
                dataset(root + "plain.csv", {kPictures, kLabels});
              }),
              HasSubstr(root + "plain.csv has pictures without classes"));
}

TEST(Pictures, AFingerprintIsOfNamesSizesAndClasses) {
  const std::string before = dataset(classes_folder("print"), {kPictures, kLabels}).fingerprint();
  EXPECT_EQ(dataset(classes_folder("print"), {kPictures, kLabels}).fingerprint(), before);
  const std::string root = testing::TempDir() + "pictures_print/";
  fs::rename(root + "dog/a.png", root + "dog/b.png");
  EXPECT_NE(dataset(root, {kPictures, kLabels}).fingerprint(), before);
}

TEST(GatherAhead, GivesWhatGatherGivesAndTheErrorOfAFileAtItsBatch) {
  const std::string root = classes_folder("ahead");
  const Dataset data = dataset(root, {kPictures, kLabels}, "", kChanges);
  const auto batches = [&] {
    return [left = std::vector<std::vector<int64_t>>{{}, {2}, {3, 1}, {0, 2}}]() mutable {
      const std::vector<int64_t> rows = left.back();
      if (left.size() > 1) left.pop_back();
      return rows;
    };
  };
  const AugmentKey key{5, 2};
  GatherAhead ahead(&data);
  for (int repeat = 0; repeat < 2; ++repeat) {  // a sequence may begin before the one before has ended
    auto rows_of = batches();
    ahead.start(batches(), key);
    TensorMap batch, wanted;
    while (const int64_t count = ahead.next(&batch)) {
      const std::vector<int64_t> rows = rows_of();
      ASSERT_EQ(count, static_cast<int64_t>(rows.size()));
      data.gather(rows.data(), count, &wanted, &key);
      for (const auto& [name, tensor] : wanted) {
        ASSERT_EQ(batch.at(name).shape(), tensor.shape());
        for (int64_t i = 0; i < tensor.size(); ++i) ASSERT_EQ(batch.at(name).at(i), tensor.at(i));
      }
      if (repeat == 0) break;
    }
  }
  const Dataset broken = dataset(root, {kPictures, kLabels});
  std::ofstream(root + "dog/a.png") << "no picture";  // sample 3, in the second batch
  GatherAhead of_broken(&broken);
  of_broken.start(batches(), std::nullopt);
  TensorMap batch;
  EXPECT_EQ(of_broken.next(&batch), 2);
  EXPECT_THAT(error_of([&] { of_broken.next(&batch); }), HasSubstr("dog/a.png cannot be read: it is no PNG"));
}

TEST(Augment, TextsAreChecked) {
  const auto refusal = [](const std::string& text) { return error_of([&] { Augment{text}; }); };
  EXPECT_EQ(refusal(kChanges), "");
  EXPECT_EQ(refusal("none"), "");
  EXPECT_THAT(refusal("flop"), HasSubstr("'flop'; there are random_resized_crop"));
  EXPECT_THAT(refusal("rotate"), HasSubstr("expected rotate(15)"));
  EXPECT_THAT(refusal("rotate(181)"), HasSubstr("numbers from 0 to 180"));
  EXPECT_THAT(refusal("flip, flip"), HasSubstr("given twice"));
  EXPECT_THAT(refusal("random_resized_crop(scale=(2, 3))"), HasSubstr("at most 1"));
  EXPECT_THAT(refusal("random_resized_crop(size=3)"), HasSubstr("no 'size'"));
  EXPECT_THAT(refusal("random_resized_crop, random_crop"), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal("flip("), HasSubstr("expected"));
}

TEST(SplitMix64, DrawsTheDistributionsThatItSays) {
  SplitMix64 random{1, 2, 3};
  double uniform = 0, normal = 0, square = 0, gamma = 0, beta = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    uniform += random.uniform(2, 4) / kDraws;
    const double x = random.normal();
    normal += x / kDraws;
    square += x * x / kDraws;
    gamma += random.gamma(0.4) / kDraws;
    beta += std::pow(random.beta(0.2, 0.2) - 0.5, 2) / kDraws;
  }
  EXPECT_NEAR(uniform, 3, 0.03);
  EXPECT_NEAR(normal, 0, 0.03);
  EXPECT_NEAR(square, 1, 0.05);
  EXPECT_NEAR(gamma, 0.4, 0.02);
  EXPECT_NEAR(beta, 1 / (4 * (2 * 0.2 + 1)), 0.005);
}

}  // namespace
}  // namespace onnx_train::pictures_test
