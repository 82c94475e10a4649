#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>

#include "onnx_passes/ir/error.h"
#include "runtime/data/files/npy.h"
#include "runtime/data/files/npz.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/loading/source.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace onnx_train::data_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFixtures = source_folder() / "tests/fixtures/";

const std::vector<InputSpec> kInputs = {
    {"x", {DType::kFloat, Dims{"batch", 4}}},
    {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true},
};

std::string temporary(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<double> values(const Tensor& tensor) {
  std::vector<double> all;
  for (int64_t i = 0; i < tensor.size(); ++i) all.push_back(tensor.at(i));
  return all;
}

TEST(Npz, ReadsCompressedAndStoredArrays) {
  for (const char* file : {"compressed.npz", "stored.npz"}) {
    const Dataset data = load_dataset(kFixtures + file, kInputs);
    EXPECT_EQ(data.num_samples(), 3);
    TensorMap batch;
    const int64_t rows[] = {2, 0};
    data.gather(rows, 2, &batch);
    EXPECT_THAT(values(batch.at("x")), ElementsAre(8, 9, 10, 11, 0, 1, 2, 3)) << file;
    EXPECT_EQ(batch.at("x").dtype(), DType::kFloat);
    EXPECT_THAT(batch.at("labels").to_ints(), ElementsAre(1, 2));
    EXPECT_EQ(batch.at("labels").dtype(), DType::kInt64);
  }
}

TEST(Npz, WritesWhatItReads) {
  const std::string path = testing::TempDir() + "written.npz";
  const TensorMap arrays = {{"grad/w", Tensor::of<double>({2, 1}, {1.5, -2})},
                            {"loss", Tensor::scalar(0.25f)},
                            {"mask", Tensor::full(DType::kBool, {3}, 1)},
                            {"none", Tensor(DType::kInt8, {0, 4})}};
  write_npz(path, arrays);
  const DataArrays file = open_npz(path);
  EXPECT_EQ(file.arrays.size(), arrays.size());
  for (const auto& [name, tensor] : arrays) {
    const Tensor read = file.find(name)->read_all();
    EXPECT_EQ(read.dtype(), tensor.dtype());
    EXPECT_EQ(read.shape(), tensor.shape());
    EXPECT_EQ(values(read.clone()), values(tensor));
  }
}

TEST(Npz, RefusesPicklesByName) {
  const DataArrays file = open_npz(kFixtures + "stored.npz");
  EXPECT_THAT(error_of([&] { file.find("objects")->read_all(); }), HasSubstr("'objects' holds Python objects"));
  EXPECT_THAT(error_of([&] { file.find("note")->read_all(); }), HasSubstr("dtype '<U1'"));
}

// A truncated file, and one with a flipped byte, gives arrays or one Error.
TEST(Npz, DamagedFilesGiveErrors) {
  for (const char* file : {"compressed.npz", "stored.npz"}) {
    const std::string whole = read_all(kFixtures + file);
    const auto try_to_read = [&](const std::string& bytes) {
      const std::string path = temporary("damaged.npz", bytes);
      error_of([&] {
        const DataArrays opened = open_npz(path);
        for (const auto& [name, rows] : opened.arrays) error_of([&] { rows.read_all().clone(); });
      });
    };
    for (size_t size = 0; size < whole.size(); size += 11) try_to_read(whole.substr(0, size));
    for (size_t i = 0; i < whole.size(); i += 5) {
      std::string flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ 0xff);
      try_to_read(flipped);
    }
  }
}

std::string npy(const std::string& header, size_t data_bytes) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string npy_error(const std::string& bytes) {
  return error_of([&] { parse_npy(bytes.data(), bytes.size(), nullptr, "x.npy"); });
}

TEST(Npy, HostileHeadersGiveErrors) {
  EXPECT_THAT(npy_error("nothing"), HasSubstr("is not a .npy array"));
  EXPECT_THAT(npy_error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 8)), HasSubstr("is cut off"));
  EXPECT_THAT(npy_error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }", 8)),
              HasSubstr("more elements than"));
  EXPECT_THAT(npy_error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000000000,), }", 8)),
              HasSubstr("is cut off"));
  EXPECT_THAT(npy_error(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8)), HasSubstr("pickling"));
  EXPECT_THAT(npy_error(npy("{'descr': [('a', '<f4')], 'shape': (1,), }", 8)), HasSubstr("structured"));
  EXPECT_THAT(npy_error(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 8)), HasSubstr("big-endian"));
  EXPECT_THAT(npy_error(npy("{'descr': '<f4', 'shape': (-1,), }", 8)), HasSubstr("damaged"));
  EXPECT_THAT(npy_error(npy("{'descr': '<f4', ", 0)), HasSubstr("damaged"));
}

// Each element goes through the axes that have several places, not through all: minutes otherwise.
TEST(Npy, AxesOfOnePlaceCostNothing) {
  constexpr size_t kOnes = 20'000, kRows = 100'000;
  std::string shape = "2, ";
  for (size_t i = 0; i < kOnes; ++i) shape += "1, ";
  std::string bytes = npy("{'descr': '|u1', 'fortran_order': True, 'shape': (" + shape + "100000), }", 2 * kRows);
  bytes[bytes.size() - 1] = 1;  // the last place of both axes
  bytes[bytes.size() - 2 * kRows + 1] = 1;
  const Tensor array = parse_npy(bytes.data(), bytes.size(), nullptr, "x.npy");
  EXPECT_EQ(array.shape().size(), kOnes + 2);
  EXPECT_EQ(array.at(2 * kRows - 1), 1);
  EXPECT_EQ(array.at(kRows), 1);  // [1, 0]
  EXPECT_EQ(array.at(1), 0);
}

TEST(Npy, HeaderIsAligned) {
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{100000, 7, 1}}) {
    const std::string bytes = npy_header(DType::kDouble, shape) + std::string(100000 * 7 * 8, '\0');
    EXPECT_EQ(npy_header(DType::kDouble, shape).size() % 64, 0u);
    EXPECT_EQ(parse_npy(bytes.data(), bytes.size(), nullptr, "x").shape(), shape);
  }
}

TEST(Csv, NumberedColumnsAndLabels) {
  const std::string path = temporary("a.csv", "labels,x0,x1,x2,x3\n1, 0.5,1,2,3\r\n0,4,5,6,7e-1\n\n");
  const Dataset data = load_dataset(path, kInputs);
  EXPECT_EQ(data.num_samples(), 2);
  TensorMap batch;
  const int64_t rows[] = {1};
  data.gather(rows, 1, &batch);
  EXPECT_THAT(values(batch.at("x")), ElementsAre(4, 5, 6, 0.7f));
  EXPECT_THAT(batch.at("labels").to_ints(), ElementsAre(0));
}

TEST(Csv, NumbersOutOfRangeAreZeroOrInfinity) {
  const Dataset data = load_dataset(
      temporary("small.csv", "x0,x1,x2,x3,labels\n1e-400,-1e-5000,1e400,-1e5000,0\n-1e-400,1e-300,-1e400,+1e5000,0\n"),
      kInputs);
  TensorMap batch;
  const int64_t rows[] = {0, 1};
  data.gather(rows, 2, &batch);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(values(batch.at("x")), ElementsAre(0, 0, infinity, -infinity, 0, 0, -infinity, infinity));
}

TEST(Csv, RemainingColumnsAreTheFirstInput) {
  const std::string path = temporary("b.csv", "a,b,labels,c,d\n1,2,9,3,4\n");
  TensorMap batch;
  const int64_t rows[] = {0};
  load_dataset(path, kInputs).gather(rows, 1, &batch);
  EXPECT_THAT(values(batch.at("x")), ElementsAre(1, 2, 3, 4));
}

TEST(Csv, ErrorsNameLineAndColumn) {
  const std::string words = temporary("c.csv", "x0,x1,x2,x3,labels\n1,2,3,4,0\n1,2,3,4,setosa\n");
  EXPECT_THAT(error_of([&] { load_dataset(words, kInputs); }),
              HasSubstr("line 3, column 'labels': 'setosa' is not a number, as the values before are"));
  const std::string ragged = temporary("d.csv", "x0,x1,x2,x3,labels\n1,2,3\n");
  EXPECT_THAT(error_of([&] { load_dataset(ragged, kInputs); }), HasSubstr("line 2: 3 fields, the header has 5"));
  const std::string open = temporary("e.csv", "x0,x1,x2,x3,labels\n1,2,3,4,\"a\n");
  EXPECT_THAT(error_of([&] { load_dataset(open, kInputs); }), HasSubstr("line 2: a quoted field has no closing quote"));
}

Tensor whole(const Dataset& data, const std::string& name) {
  std::vector<int64_t> rows(static_cast<size_t>(data.num_samples()));
  std::iota(rows.begin(), rows.end(), 0);
  TensorMap batch;
  data.gather(rows.data(), data.num_samples(), &batch);
  return batch.at(name);
}

Dataset table(const std::string& text, const ReadOptions& options = {}) {
  return load_dataset(temporary("table.csv", text), kInputs, options.role.value_or(DataRole::kTrain), {}, options);
}

TEST(Csv, QuotedFieldsHoldCommasQuotesAndLines) {
  const Dataset data = table("\"a\",b,c,d,labels\r\n1,\"2\" ,3,4,\"say \"\"hi\"\", you\"\r\n5,6,7,8,\"two\nlines\"\n");
  EXPECT_THAT(values(whole(data, "x")), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(data.metadata().at("onnx_train.classes"), R"(["say \"hi\", you","two\nlines"])");
}

TEST(Csv, AModelTakesTheColumnsThatItWasTrainedOnInTheirOrder) {
  ReadOptions options;
  options.map = {"kind=labels"};
  const Dataset data = table("d,c,kind,b,a\n1,2,0,3,4\n", options);
  EXPECT_EQ(data.metadata().at("onnx_train.inputs"), R"({"labels":["kind"],"x":["d","c","b","a"]})");
  ReadOptions tests;
  tests.role = DataRole::kEvaluate;
  tests.metadata = data.metadata();
  const Dataset other = table("name,a,b,c,d,kind\n7,4,3,2,1,1\n", tests);
  EXPECT_THAT(values(whole(other, "x")), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(whole(other, "labels").to_ints(), ElementsAre(1));
  EXPECT_THAT(error_of([&] { table("a,b,c,e,kind\n1,2,3,4,0\n", tests); }),
              HasSubstr("has no column 'd', which the model's 'x' was trained on; --columns x=..."));
  tests.columns = {"x=a", "b", "c", "e"};
  EXPECT_THAT(values(whole(table("a,b,c,e,kind\n1,2,3,4,0\n", tests), "x")), ElementsAre(1, 2, 3, 4));
}

TEST(Csv, TextsAreNumberedInSortedOrderAndTheModelKeepsIt) {
  const Dataset data = table("a,b,colour,d,labels\n1,2,red,3,dog\n4,5,blue,6,ant\n7,8,red,9,cat\n");
  EXPECT_THAT(values(whole(data, "x")), ElementsAre(1, 2, 1, 3, 4, 5, 0, 6, 7, 8, 1, 9));
  EXPECT_THAT(whole(data, "labels").to_ints(), ElementsAre(2, 0, 1));
  EXPECT_EQ(data.metadata().at("onnx_train.classes"), R"(["ant","cat","dog"])");
  EXPECT_EQ(data.metadata().at("onnx_train.columns"), R"({"colour":["blue","red"]})");
  ReadOptions tests;
  tests.role = DataRole::kEvaluate;
  tests.metadata = data.metadata();
  const std::string one = "a,b,colour,d,labels\n1,2,red,3,dog\n";
  EXPECT_THAT(whole(table(one, tests), "labels").to_ints(), ElementsAre(2));
  EXPECT_THAT(error_of([&] { table("a,b,colour,d,labels\n1,2,green,3,dog\n", tests); }),
              HasSubstr("column 'colour': 'green' is none of the values that the model knows: blue, red"));
  // A training on some of the classes keeps their numbers, one on others does not.
  tests.role = DataRole::kTrain;
  EXPECT_THAT(whole(table(one, tests), "labels").to_ints(), ElementsAre(2));
  EXPECT_THAT(whole(table("a,b,colour,d,labels\n1,2,red,3,eel\n", tests), "labels").to_ints(), ElementsAre(0));
}

TEST(Csv, MissingValuesAreAnErrorOrWhatIsAskedFor) {
  const std::string text = "a,b,c,d,labels\n1,2,3,4,0\n5,,NA,8,1\n9,4,6,nan,2\n";
  const auto with = [](const char* missing) {
    ReadOptions options;
    options.missing = missing;
    return options;
  };
  EXPECT_THAT(error_of([&] { table(text); }),
              HasSubstr("line 3, column 'b': the value is missing; --missing mean, zero"));
  EXPECT_THAT(whole(table(text, with("drop")), "labels").to_ints(), ElementsAre(0));
  EXPECT_THAT(values(whole(table(text, with("zero")), "x")), ElementsAre(1, 2, 3, 4, 5, 0, 0, 8, 9, 4, 6, 0));
  const Dataset filled = table(text, with("mean"));
  EXPECT_THAT(values(whole(filled, "x")), ElementsAre(1, 2, 3, 4, 5, 3, 4.5, 8, 9, 4, 6, 6));
  // Other tables get the means of the training, without being told.
  ReadOptions tests;
  tests.role = DataRole::kEvaluate;
  tests.metadata = filled.metadata();
  EXPECT_THAT(values(whole(table("a,b,c,d,labels\n,100,,1,0\n", tests), "x")), ElementsAre(5, 100, 4.5, 1));
  EXPECT_THAT(error_of([&] { table("a,b,c,d,labels\n1,2,3,4,\n", with("mean")); }),
              HasSubstr("column 'labels': the value is missing, and has no mean or zero; --missing drop"));
  EXPECT_THAT(error_of([&] { table("a,b,c,d,labels\n1,,3,4,0\n", with("mean")); }), HasSubstr("as all are"));
}

TEST(Csv, ColumnsAndNamesAsAskedFor) {
  ReadOptions options;
  options.columns = {"x=d", "c", "b", "a"};
  options.map = {"target=labels"};
  const Dataset data = table("id,a,b,c,d,target\nu1,1,2,3,4,1\nu2,5,6,7,8,0\n", options);
  EXPECT_THAT(values(whole(data, "x")), ElementsAre(4, 3, 2, 1, 8, 7, 6, 5));
  EXPECT_THAT(whole(data, "labels").to_ints(), ElementsAre(1, 0));
  options.columns = {"x=aa", "b", "c", "d"};
  EXPECT_THAT(error_of([&] { table("a,b,c,d,target\n1,2,3,4,1\n", options); }), HasSubstr("has no column 'aa'"));
  options.columns = {};
  options.map = {"tarjet=labels"};
  EXPECT_THAT(error_of([&] { table("a,b,c,d,target\n1,2,3,4,1\n", options); }), HasSubstr("did you mean 'target'"));
  options.map = {"target=label"};
  EXPECT_THAT(error_of([&] { table("a,b,c,d,target\n1,2,3,4,1\n", options); }), HasSubstr("no input 'label'"));
}

TEST(Npz, NamesMayDifferFromTheInputs) {
  const std::string path = testing::TempDir() + "renamed.npz";
  write_npz(path, {{"features", Tensor(DType::kFloat, {2, 4})}, {"labels", Tensor::ints({0, 1})}});
  ReadOptions options;
  options.map = {"features=x"};
  EXPECT_EQ(load_dataset(path, kInputs, DataRole::kTrain, {}, options).num_samples(), 2);
}

std::string idx(int type, const std::vector<int>& shape, const std::string& data) {
  std::string bytes = {0, 0, static_cast<char>(type), static_cast<char>(shape.size())};
  for (int size : shape) {
    for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
  }
  return bytes + data;
}

Dataset load_libsvm(const std::string& text, const std::map<std::string, std::string>& metadata = {},
                    std::vector<std::string>* notes = nullptr, const std::vector<InputSpec>& inputs = kInputs,
                    DataRole role = DataRole::kTrain) {
  ReadOptions options;
  options.metadata = metadata;
  return load_dataset(temporary("rows.libsvm", text), inputs, role, {}, options, notes);
}

TEST(Libsvm, ReadsSparseRows) {
  const Dataset data = load_libsvm("# comment\n2 1:0.5 4:-1e1\n\n0\t3:+7 # 1:9\r\n1\n");
  EXPECT_EQ(data.num_samples(), 3);
  TensorMap batch;
  const int64_t rows[] = {0, 1, 2};
  data.gather(rows, 3, &batch);
  EXPECT_EQ(batch.at("x").shape(), (Shape{3, 4}));
  EXPECT_THAT(values(batch.at("x")), ElementsAre(0.5, 0, 0, -10, 0, 0, 7, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.at("labels").to_ints(), ElementsAre(2, 0, 1));
  EXPECT_EQ(data.metadata().at("onnx_train.first_index"), "1");
  EXPECT_EQ(data.metadata().count("onnx_train.classes"), 0u);
}

TEST(Libsvm, FeaturesCountFromWhereTheyDidInTraining) {
  const auto first_row = [](const Dataset& data) {
    TensorMap batch;
    const int64_t row = 0;
    data.gather(&row, 1, &batch);
    return values(batch.at("x"));
  };
  const Dataset from_zero = load_libsvm("1 0:1 3:2\n0 1:3\n");
  EXPECT_THAT(first_row(from_zero), ElementsAre(1, 0, 0, 2));
  const auto metadata = from_zero.metadata();
  EXPECT_THAT(first_row(load_libsvm("1 1:5\n", metadata)), ElementsAre(0, 5, 0, 0));
  EXPECT_THAT(first_row(load_libsvm("1 1:5\n")), ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(error_of([] {
                load_libsvm("1 0:5\n", {{"onnx_train.first_index", "1"}});
              }),
              HasSubstr("has an index 0, and the model was trained on indices from 1"));
  EXPECT_THAT(error_of([] { load_libsvm("1 0:5 4:1\n"); }), HasSubstr("features up to index 4, counted from 0, and"));
}

TEST(Libsvm, LabelsThatAreNoPlacesOfClassesAreNumbered) {
  const auto labels = [](const Dataset& data) {
    TensorMap batch;
    const int64_t rows[] = {0, 1};
    data.gather(rows, 2, &batch);
    return values(batch.at("labels"));
  };
  std::vector<std::string> notes;
  const Dataset signs = load_libsvm("+1 1:1\n-1 1:2\n", {}, &notes);
  EXPECT_THAT(labels(signs), ElementsAre(1, 0));
  EXPECT_THAT(notes, testing::Contains(HasSubstr("labels are -1 to 1, read as 2 classes in ascending order")));
  EXPECT_EQ(signs.metadata().at("onnx_train.classes"), R"(["-1","1"])");
  EXPECT_THAT(labels(load_libsvm("1 1:1\n1 1:2\n", signs.metadata())), ElementsAre(1, 1));
  EXPECT_THAT(error_of([&] { load_libsvm("1 1:1\n0 1:2\n", signs.metadata()); }),
              HasSubstr("line 2: label 0 is none of the classes that the model knows"));
  EXPECT_THAT(error_of([] { load_libsvm("0.5 1:1\n"); }), HasSubstr("labels"));
  std::vector<InputSpec> regression = kInputs;
  regression[1].type = {DType::kFloat, Dims{"batch"}};
  EXPECT_THAT(labels(load_libsvm("-1 1:1\n0.5 1:2\n", {}, nullptr, regression)), ElementsAre(-1, 0.5));
}

TEST(Libsvm, ErrorsNameTheLine) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "holds no rows"},
           {"# 1 1:1\n", "holds no rows"},
           {"1 1:1\n1,2 1:1\n", "line 2: '1,2' is no label"},
           {"1 qid:3 1:1\n", "line 1: 'qid:3' is not INDEX:VALUE"},
           {"1 1\n", "'1' is not INDEX:VALUE"},
           {"1 1:\n", "'1:' is not INDEX:VALUE"},
           {"1 1:nan\n", "'1:nan' is not INDEX:VALUE"},
           {"1 -1:2\n", "'-1:2' is not INDEX:VALUE"},
           {"1 99999999999:2\n", "is not INDEX:VALUE"},
           {"1 2:1 2:3\n", "'2:3' comes after index 2; indices ascend"},
           {"1 5:1\n", "features up to index 5, counted from 1, and the model expects 'x' as float[batch,4]"}}) {
    EXPECT_THAT(error_of([&] { load_libsvm(text); }), HasSubstr(message)) << text;
  }
}

TEST(Idx, ImagesBecomeRowsOfTheModel) {
  const std::string images = temporary("images-idx3-ubyte", idx(8, {2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, '\xff'}));
  const std::string labels = temporary("labels-idx1-ubyte", idx(8, {2}, {7, 3}));
  const Dataset data = load_dataset(images + "," + labels, kInputs, DataRole::kTrain, Preprocess({"2"}, kInputs));
  TensorMap batch;
  const int64_t rows[] = {1};
  data.gather(rows, 1, &batch);
  EXPECT_THAT(values(batch.at("x")), ElementsAre(8, 10, 12, 510));
  EXPECT_THAT(batch.at("labels").to_ints(), ElementsAre(3));
}

TEST(Idx, CutOffFilesGiveErrors) {
  const std::string path = temporary("short-idx3-ubyte", idx(8, {60000, 28, 28}, "abc"));
  EXPECT_THAT(error_of([&] { load_dataset(path + "," + path, kInputs); }), HasSubstr("is cut off"));
}

TEST(Idx, DamagedCompressedFilesGiveErrorsAndAreClosed) {
  const std::string head("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);  // gzip, no name, no time
  const std::string block("\x01\x04\0\xfb\xff\0\0\x08\0", 9);  // the last block: 4 stored bytes
  const std::string path = temporary("damaged-idx1-ubyte.gz", head + block + "not the checksum");
  const std::string cut_off = temporary("cut-off-idx1-ubyte.gz", head + block.substr(0, 7));
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = open_files();
  for (const std::string& file : {path, cut_off}) {
    EXPECT_THAT(error_of([&] { load_dataset(file + "," + file, kInputs); }), HasSubstr("is damaged"));
  }
  EXPECT_EQ(open_files(), before);
}

TEST(Cifar10, ReadsRecords) {
  std::string record(3073, '\x05');
  record[0] = 9;
  const std::string path = temporary("data_batch_1.bin", record + record);
  const std::vector<InputSpec> inputs = {{"image", {DType::kFloat, Dims{"n", 3, 32, 32}}},
                                         {"y", {DType::kInt64, Dims{"n"}}, true}};
  const Dataset data = load_dataset(path, inputs);
  EXPECT_EQ(data.num_samples(), 2);
  EXPECT_EQ(data.find("y")->rows.stored().at(1), 9);
  for (const std::string& other : {std::string("abc"), std::string(2 * 3073, '\x0b'), std::string()}) {
    const std::string error = error_of([&] { load_dataset(temporary("tokens.bin", other), inputs); });
    EXPECT_THAT(error, HasSubstr("is no CIFAR-10 file"));
    EXPECT_THAT(error, HasSubstr("tokens are read for models that take int64[batch, tokens]"));
  }
}

TEST(Folder, AnErrorSaysWhatWasLookedForAndFound) {
  const std::string folder = testing::TempDir() + "tokens";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/train.bin") << "abc";
  const std::string error = error_of([&] { load_dataset(folder, kInputs); });
  EXPECT_THAT(error, HasSubstr("holds train.bin, but no *.npy"));
  EXPECT_THAT(error, HasSubstr("data_batch_*"));
}

TEST(Dataset, ErrorsNameKeyExpectedAndFound) {
  const Tensor labels = Tensor::ints({0, 1});
  EXPECT_THAT(error_of([&] {
                Dataset({{"labels", labels}}, kInputs);
              }),
              HasSubstr("no 'x', which the model expects as float[batch,4]"));
  EXPECT_THAT(error_of([&] {
                Dataset({{"x", Tensor(DType::kFloat, {2, 5})}, {"labels", labels}}, kInputs);
              }),
              HasSubstr("'x': the model expects float[batch,4], the data holds float[2,5]"));
  EXPECT_THAT(error_of([&] {
                Dataset({{"x", Tensor(DType::kFloat, {3, 4})}, {"labels", labels}}, kInputs);
              }),
              HasSubstr("'x' has 3 samples, 'labels' has 2"));
  EXPECT_THAT(error_of([&] {
                Dataset({{"x", Tensor(DType::kFloat, {2, 4})}, {"labels", Tensor(DType::kFloat, {2})}}, kInputs);
              }),
              HasSubstr("floats are not rounded"));
}

TEST(Dataset, ChannelsLastIsNotTakenForChannelsFirst) {
  const std::vector<InputSpec> inputs = {{"x", {DType::kFloat, Dims{"n", 3, 8, 8}}}};
  EXPECT_THAT(error_of([&] { Dataset({{"x", Tensor(DType::kUint8, {2, 8, 8, 3})}}, inputs); }), HasSubstr("expects"));
}

TEST(Dataset, OtherFirstDimensionsGoWholeToEachStep) {
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back({"weight", {DType::kFloat, Dims{5}}});
  inputs.push_back({"alpha", {DType::kFloat, Dims{}}});
  const Dataset data({{"x", Tensor(DType::kFloat, {2, 4})},
                      {"labels", Tensor::ints({1, 0})},
                      {"weight", Tensor::full(DType::kFloat, {5}, 3)},
                      {"alpha", Tensor::scalar(0.5)}},
                     inputs);
  TensorMap batch;
  const int64_t rows[] = {1};
  data.gather(rows, 1, &batch);
  EXPECT_EQ(batch.at("weight").shape(), Shape{5});
  EXPECT_EQ(batch.at("alpha").shape(), Shape{});
  EXPECT_EQ(batch.at("alpha").dtype(), DType::kFloat);
  EXPECT_EQ(batch.at("x").shape(), (Shape{1, 4}));
}

TEST(SampleOrder, IsAPermutationOfItsSeedAndEpoch) {
  const auto order = sample_order(1000, 7, 3, true);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 1000u);
  EXPECT_EQ(order, sample_order(1000, 7, 3, true));
  EXPECT_NE(order, sample_order(1000, 7, 4, true));
  EXPECT_NE(order, sample_order(1000, 8, 3, true));
  std::vector<int64_t> plain(5);
  std::iota(plain.begin(), plain.end(), 0);
  EXPECT_EQ(sample_order(5, 7, 3, false), plain);
}

// The order is part of what a checkpoint means: it must not change from version to version.
TEST(SampleOrder, StaysTheSame) { EXPECT_THAT(sample_order(6, 1, 0, true), ElementsAre(3, 4, 5, 0, 1, 2)); }

}  // namespace
}  // namespace onnx_train::data_test
