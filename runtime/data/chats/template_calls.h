// What a chat template calls: filters, tests, methods of values, and functions that are there without a definition.
// Errors are Error and name what is not known.
#pragma once

#include <string>

#include "runtime/data/chats/template_value.h"

namespace onnx_train::chats {

Value filtered(const std::string& filter, const Value& value, const Arguments& arguments);
bool tested(const std::string& test, const Value& value, const Arguments& arguments);
// value.name, or value['name']: an item of a dictionary, or a method; else undefined.
Value attribute(const Value& value, const std::string& name);
// value[index]
Value element(const Value& value, const Value& index);
// value[from:to:step]; None for what is left out.
Value slice(const Value& value, const Value& from, const Value& to, const Value& step);
// range, namespace, dict, raise_exception, strftime_now.
Dict known_functions();

}  // namespace onnx_train::chats
