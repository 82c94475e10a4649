package main

import (
	"runtime"
	"testing"
	"time"

	"onnxtrain/internal/heap"
)

func useSessions(t *testing.T, count int, closes bool) {
	for i := 0; i < count; i++ {
		if err := useASession("../../../../tests/fixtures/mlp.onnx", closes); err != nil {
			t.Fatal(err)
		}
	}
}

// The counters of malloc say what C's memory holds; Go's is its own.
func TestAThousandSessionsThatAreClosedLeakNothing(t *testing.T) {
	runtime.LockOSThread() // malloc keeps some of what is freed for each thread, and counts it as given out
	defer runtime.UnlockOSThread()
	useSessions(t, 150, true) // what the library makes once
	before := heap.BytesInUse()
	useSessions(t, 1000, true)
	if after := heap.BytesInUse(); after > before+1000*8 {
		t.Fatalf("1000 sessions leave %d bytes", after-before)
	}
}

func TestSessionsThatAreNotClosedAreFreedByTheGarbageCollector(t *testing.T) {
	useSessions(t, 20, true)
	before := heap.BytesInUse()
	useSessions(t, 20, false)
	held := heap.BytesInUse() - before
	for i := 0; i < 100 && heap.BytesInUse() > before+held/10; i++ {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // finalizers run in a goroutine
	}
	if after := heap.BytesInUse(); held < 20*1000 || after > before+held/10 {
		t.Fatalf("20 sessions hold %d bytes, and %d when they are gone", held, after-before)
	}
}
