// What expressions of a chat template are: Python's values, as Jinja shows them. Lists and dictionaries do not change
// once they are made; a namespace does, and is in none of them, so that no value holds itself. How deep and large
// values are is limited. Values of one template belong to one thread. Errors are Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace onnx_train::chats {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion
struct Arguments;
using Function = std::function<Value(const Arguments&)>;

struct Undefined {
  std::string name;
};
struct None {};

// Of a value with all that it holds.
struct Extent {
  int64_t depth = 0, values = 1;
};
template <typename Items>
struct Held {
  Items items;
  Extent extent;
};
struct Namespace {
  Dict fields;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<const Held<List>>,
                            std::shared_ptr<const Held<Dict>>, std::shared_ptr<Function>, std::shared_ptr<Namespace>>;

  Value() = default;
  Value(Data data) : data_(std::move(data)) {}
  static Value text(std::string text);
  static Value list(List items);
  static Value dict(Dict items);
  static Value space(Dict fields) { return Value(Data(std::make_shared<Namespace>(Namespace{std::move(fields)}))); }
  static Value function(Function f) { return Value(Data(std::make_shared<Function>(std::move(f)))); }
  static Value of(const nlohmann::ordered_json& json);

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  const List* as_list() const;  // null for other values
  const Dict* as_dict() const;  // of a dictionary or a namespace
  Namespace* as_namespace() const;
  Extent extent() const;  // throws Error for a namespace
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const { return as<int64_t>() || as<double>() || as<bool>(); }

  bool truth() const;
  double number() const;           // of a number
  int64_t integer() const;         // of a whole number
  std::string shown() const;       // as {{ }} prints it
  const std::string& str() const;  // of a text
  const char* type() const;        // as Python calls it
  List items() const;              // what a loop goes over: a list's items, a dictionary's keys, a text's characters
  std::string json(int64_t indent = -1, int64_t depth = 0) const;  // json.dumps(ensure_ascii=False)

 private:
  std::string repr() const;

  Data data_ = None{};
};

struct Arguments {
  List values;
  Dict named;

  // The argument of this place or name; null if it is not given.
  const Value* find(size_t place, std::string_view name) const;
};

bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);
bool contains(const Value& in, const Value& what);
const Value* find(const Dict& dict, std::string_view key);
void put(Dict* dict, const std::string& key, Value value);

}  // namespace onnx_train::chats
