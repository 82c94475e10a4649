#include "tests/support/small_stack.h"

#include <gtest/gtest.h>
#include <pthread.h>

namespace onnx_train {

void with_small_stack(size_t bytes, std::function<void()> f) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread = {};
  const auto run = [](void* argument) -> void* {
    try {
      (*static_cast<std::function<void()>*>(argument))();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &f), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

}  // namespace onnx_train
