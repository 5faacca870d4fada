package etcdmember

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo writes etcd's log into ours. What etcd calls information is for those who look for it, and so is everything once the member is
// told to end: etcd calls its own end an error.
func zapTo(log *slog.Logger, ending *atomic.Bool) *zap.Logger {
	return zap.New(&core{log: log.With("part", "etcd"), ending: ending})
}

type core struct {
	log    *slog.Logger
	ending *atomic.Bool
}

func (c *core) level(l zapcore.Level) slog.Level {
	switch {
	case c.ending.Load():
		return slog.LevelDebug
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (c *core) Enabled(l zapcore.Level) bool {
	return c.log.Enabled(context.Background(), c.level(l))
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log.With(attrs(fields)...), ending: c.ending}
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), c.level(e.Level), e.Message, attrs(fields)...)
	return nil
}

func (c *core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	var list []any
	for _, f := range fields {
		f.AddTo(enc)
		if v, ok := enc.Fields[f.Key]; ok {
			list = append(list, slog.Any(f.Key, v))
		}
	}
	return list
}
