package disk_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const benchSize = 256 << 20 // bytes

// filled makes a file without holes: writing into one measures the allocator.
func filled(b *testing.B, path string) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 1<<20)
	for i := range p {
		p[i] = byte(i)
	}
	for off := int64(0); off < benchSize; off += int64(len(p)) {
		if _, err := f.WriteAt(p, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEngines does random 4 KiB requests. "do" is inline, the number the requests in flight.
func BenchmarkEngines(b *testing.B) {
	for _, place := range []string{"tmpfs", "disk"} {
		path, direct := "", "yes"
		if place == "tmpfs" {
			path, direct = inMemory(b, benchSize), "no"
		} else {
			path = onDisk(b, benchSize)
		}
		filled(b, path)
		for _, engine := range []string{"uring", "threads", "inline"} {
			for _, op := range []string{"read", "write", "fua"} {
				for _, depth := range []int{0, 1, 32} {
					if (engine == "inline") != (depth == 0) {
						continue
					}
					b.Run(fmt.Sprintf("%s/%s/%s/%d", place, engine, op, depth), func(b *testing.B) {
						s := open(b, disk.Options{Path: path, Engine: engine, Direct: direct})
						defer s.Close()
						bench(b, s, op, depth)
					})
				}
			}
		}
	}
}

func bench(b *testing.B, s disk.Store, op string, depth int) {
	pool := iobuf.NewPool(1 << 20)
	defer pool.Close()
	prepare := func(r *disk.Request) {
		r.Op, r.FUA, r.Off = disk.Read, op == "fua", rand.Int64N(benchSize/4096)*4096
		if op != "read" {
			r.Op = disk.Write
		}
	}
	free := make(chan *disk.Request, max(depth, 1))
	for range max(depth, 1) {
		m := pool.Get(4096)
		defer m.Release()
		free <- &disk.Request{Buf: m.B, Mem: m, Done: func(r *disk.Request) { free <- r }}
	}
	b.ReportAllocs()
	b.ResetTimer()
	if depth == 0 {
		r := <-free
		for range b.N {
			prepare(r)
			if s.Do(r); r.Err != nil {
				b.Fatal(r.Err)
			}
		}
		return
	}
	batch := make([]*disk.Request, 0, depth)
	for done := 0; done < b.N; {
		batch = append(batch[:0], <-free)
		for len(free) > 0 && len(batch) < depth {
			batch = append(batch, <-free)
		}
		for _, r := range batch {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			prepare(r)
		}
		s.Submit(batch)
		done += len(batch)
	}
	for range depth {
		<-free
	}
}
