// Linear models and what prepares their inputs, of ai.onnx.ml. Their attributes become weights.
#include <cmath>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

std::vector<float> float_list(const Foreign& f, const char* name) { return f.node().attr(name, std::vector<float>()); }
std::vector<int64_t> int_list(const Foreign& f, const char* name) {
  return f.node().attr(name, std::vector<int64_t>());
}

// x Wᵀ + b, W [rows, features]
Var linear(const Foreign& f, int64_t rows) {
  const auto count = static_cast<int64_t>(float_list(f, "coefficients").size());
  if (rows < 1 || count == 0 || count % rows != 0)
    f.refuse(concat("it has ", count, " coefficients for ", rows, " outputs; export the model again"));
  const Var x = f.floats();
  if (f.rank(0) != 2) f.refuse(concat("its input is ", to_string(x.type()), ", not [batch, features]; reshape it"));
  std::vector<Var> inputs = {cast(x, DType::kFloat), f.weight("coefficients", {rows, count / rows})};
  if (!float_list(f, "intercepts").empty()) inputs.push_back(f.weight("intercepts", {rows}));
  return f.b().op("Gemm", inputs, {{"transB", 1}});
}

Var transformed(const Foreign& f, Var scores) {
  const std::string how = f.node().attr("post_transform", "NONE");
  if (how == "NONE") return scores;
  if (how == "LOGISTIC") return sigmoid(scores);
  if (how == "SOFTMAX") return f.b().op("Softmax", {scores}, {{"axis", -1}});
  f.refuse(concat("its post_transform ", how, " is not known here; export it with NONE, LOGISTIC or SOFTMAX"));
}

Results linear_regressor(Foreign& f) { return f.to(transformed(f, linear(f, f.node().attr("targets", 1)))); }

// The label of the largest score, and the scores. One row of coefficients for two labels is the score of the second.
Results linear_classifier(Foreign& f) {
  const onnx::AttributeProto* names = f.node().find_attr("classlabels_strings");
  const bool has_names = names && names->strings_size() > 0;
  if (has_names && f.wants(0))
    f.refuse("its labels are strings, which are no tensors of numbers; export it with classes that are numbers");
  Builder& b = f.b();
  std::vector<int64_t> labels = int_list(f, "classlabels_ints");
  if (has_names) labels.resize(static_cast<size_t>(names->strings_size()));  // nothing reads them
  const auto bias = static_cast<int64_t>(float_list(f, "intercepts").size());
  const auto classes = static_cast<int64_t>(labels.size());
  const int64_t rows = bias > 0 ? bias : classes;
  const Var scores = linear(f, rows);
  if (rows == 1) {
    if (classes != 2) f.refuse(concat("it has one score and ", classes, " labels, not 2; export the model again"));
    const Var second = squeeze(scores > 0.0, {1});
    const Var label = where(second, b.scalar(DType::kInt64, static_cast<double>(labels[1])),
                            b.scalar(DType::kInt64, static_cast<double>(labels[0])));
    const bool logistic = f.node().attr("post_transform", "NONE") == std::string("LOGISTIC");
    if (!logistic && f.node().attr("post_transform", "NONE") != std::string("NONE"))
      f.refuse("one score of two labels has the post_transform NONE or LOGISTIC here; export it so");
    const Var p = logistic ? sigmoid(scores) : scores;
    return f.to({label, concat({1.0 - p, p}, int64_t{1})});
  }
  if (classes != rows) f.refuse(concat("it has ", rows, " scores and ", classes, " labels; export the model again"));
  const Var best = b.op("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
  return f.to({gather(b.ints(labels), best, 0), transformed(f, scores)});
}

// x / norm of each row; rows of zeros stay
Results normalizer(Foreign& f) {
  const Var x = cast(f.floats(), DType::kFloat);
  const std::string norm = f.node().attr("norm", "MAX");
  if (norm == "L1" || norm == "L2")
    return f.to(f.b().op("LpNormalization", {x}, {{"axis", -1}, {"p", norm == "L1" ? 1 : 2}}));
  if (norm != "MAX") f.refuse(concat("its norm is '", norm, "'; it is MAX, L1 or L2"));
  const Var most = reduce_max(x, {-1});
  const Var is_zero = equal(most, zeros_like(most));
  return f.to(x / where(is_zero, ones_like(most), most));
}

// One number for all features, or one for each.
Var per_feature(const Foreign& f, const char* attribute) {
  return f.buffer(attribute, {static_cast<int64_t>(float_list(f, attribute).size())});
}

// (x - offset) scale
Results scaler(Foreign& f) {
  Var y = cast(f.floats(), DType::kFloat);
  if (f.node().has_attr("offset")) y = y - per_feature(f, "offset");
  if (f.node().has_attr("scale")) y = y * per_feature(f, "scale");
  return f.to(y);
}

// 1 above the threshold, else 0
Results binarizer(Foreign& f) {
  const Var x = f.floats();
  return f.to(cast(x > static_cast<double>(f.node().attr("threshold", 0.0f)), x.dtype()));
}

// Numbers in the place of one that stands for what is missing
Results imputer(Foreign& f) {
  Builder& b = f.b();
  const Var x = f.x();
  if (!is_float(x.dtype())) {
    const std::vector<int64_t> with = int_list(f, "imputed_value_int64s");
    if (with.empty()) f.refuse("it has no imputed values for integers; export the model again");
    const Var gone = equal(x, b.scalar(x.dtype(), static_cast<double>(f.node().attr("replaced_value_int64", 0))));
    return f.to(where(gone, b.ints(with), x));
  }
  const std::vector<float> with = float_list(f, "imputed_value_floats");
  if (with.empty()) f.refuse("it has no imputed values for floats; export the model again");
  const float value = f.node().attr("replaced_value_float", 0.0f);
  const Var gone = std::isnan(value) ? b.op("IsNaN", {x}) : equal(x, b.scalar(x.dtype(), static_cast<double>(value)));
  const Tensor values = Tensor::of<float>({static_cast<int64_t>(with.size())}, with);
  return f.to(where(gone, b.constant(values.cast(x.dtype())), x));
}

// Columns of x
Results array_feature_extractor(Foreign& f) {
  const Var columns = reshape(f.x(1), std::vector<int64_t>{-1});
  const Var picked = gather(f.x(0), columns, f.rank(0) - 1);
  return f.to(f.rank(0) == 1 ? unsqueeze(picked, {0}) : picked);
}

// All inputs beside each other
Results feature_vectorizer(Foreign& f) {
  const std::vector<int64_t> sizes = int_list(f, "inputdimensions");
  std::vector<Var> parts;
  for (int i = 0; i < f.node().num_inputs(); ++i) {
    const int64_t width = f.size(i, -1);
    if (f.rank(i) != 2 || static_cast<size_t>(i) >= sizes.size() || sizes[static_cast<size_t>(i)] != width)
      f.refuse(concat("its input ", i, " is ", to_string(f.x(i).type()),
                      "; its attribute 'inputdimensions' says other "
                      "sizes: export the model again"));
    parts.push_back(cast(f.floats(i), DType::kFloat));
  }
  return f.to(concat(parts, int64_t{1}));
}

// 1 at the place of the category, 0 elsewhere: [.., categories]
Results one_hot_encoder(Foreign& f) {
  const std::vector<int64_t> categories = int_list(f, "cats_int64s");
  if (categories.empty()) f.refuse("its categories are strings; encode them before the model");
  if (f.node().attr("zeros", 1) == 0) f.refuse("it fails for other categories (zeros = 0); export it with zeros = 1");
  const Var found = equal(unsqueeze(cast(f.x(), DType::kInt64), {-1}), f.b().ints(categories));
  return f.to(cast(found, DType::kFloat));
}

constexpr const char* kTrees = "decisions of trees have no gradient; train the layers after it on its outputs";
constexpr const char* kStrings =
    "it reads or writes strings or maps, which are no tensors of numbers; export the model without it (zipmap=False)";
constexpr const char* kKernelMachine = "its support vectors are not trained here; take a linear model or a network";

}  // namespace

std::vector<ForeignRow> learning_foreign() {
  return {
      {"LinearRegressor", linear_regressor, kMl},
      {"LinearClassifier", linear_classifier, kMl},
      {"Normalizer", normalizer, kMl},
      {"Scaler", scaler, kMl},
      {"Binarizer", binarizer, kMl},
      {"Imputer", imputer, kMl},
      {"ArrayFeatureExtractor", array_feature_extractor, kMl},
      {"FeatureVectorizer", feature_vectorizer, kMl},
      {"OneHotEncoder", one_hot_encoder, kMl},
      {"LabelEncoder", nullptr, kMl, kStrings},
      {"ZipMap", nullptr, kMl, kStrings},
      {"DictVectorizer", nullptr, kMl, kStrings},
      {"CategoryMapper", nullptr, kMl, kStrings},
      {"CastMap", nullptr, kMl, kStrings},
      {"TreeEnsemble", nullptr, kMl, kTrees},
      {"TreeEnsembleClassifier", nullptr, kMl, kTrees},
      {"TreeEnsembleRegressor", nullptr, kMl, kTrees},
      {"SVMClassifier", nullptr, kMl, kKernelMachine},
      {"SVMRegressor", nullptr, kMl, kKernelMachine},
  };
}

}  // namespace onnx_train
