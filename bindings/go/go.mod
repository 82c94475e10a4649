module onnxtrain

go 1.19
