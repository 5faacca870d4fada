package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

const (
	answerBytesMax = 64 << 20 // of a JSON answer
	lineBytesMax   = 16 << 20 // of one event
)

// Client talks to a Server, directly or through an agent. Safe for concurrent use.
type Client struct {
	http *http.Client
	base string // for example http://hawser/v1/
	what string // for messages: what does not answer
}

// NewClient talks to the server on the unix socket at path. what names it in errors: "the agent", "replicator r0".
func NewClient(path, what string) *Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost: 2,
	}
	return &Client{http: &http.Client{Transport: tr}, base: "http://hawser/v1/", what: what}
}

// Sub gives a client for the paths below path of the same server.
func (c *Client) Sub(path string) *Client {
	return &Client{http: c.http, base: c.base + strings.Trim(path, "/") + "/", what: c.what}
}

// RoundTrip implements http.RoundTripper: a request for any host goes to the server's socket.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.http.Transport.RoundTrip(r)
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks for the status of the resource.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c, "status", nil)
}

// Definition asks what the resource runs by.
func (c *Client) Definition(ctx context.Context) (*Definition, error) {
	return get[Definition](ctx, c, "definition", nil)
}

// ShowGI asks for the generation identifiers of one volume.
func (c *Client) ShowGI(ctx context.Context, volume int) (*GI, error) {
	return get[GI](ctx, c, "show-gi", volumeQuery(volume))
}

// Undos lists the undo logs of a volume, or of All.
func (c *Client) Undos(ctx context.Context, volume int) ([]UndoLog, error) {
	logs, err := get[[]UndoLog](ctx, c, "undo", volumeQuery(volume))
	if err != nil {
		return nil, err
	}
	return *logs, nil
}

// DumpMD copies the metadata of a volume, as text, to w.
func (c *Client) DumpMD(ctx context.Context, volume int, w io.Writer) error {
	return c.Copy(ctx, "dump-md", volumeQuery(volume), w)
}

// ExportUndo copies one undo log to w.
func (c *Client) ExportUndo(ctx context.Context, volume int, id string, w io.Writer) error {
	return c.Copy(ctx, "undo/"+url.PathEscape(id), volumeQuery(volume), w)
}

// Open gives the replicator its definition.
func (c *Client) Open(ctx context.Context, def *Definition) error {
	return c.Call(ctx, "open", def, nil)
}

// Adjust gives the replicator a changed definition.
func (c *Client) Adjust(ctx context.Context, def *Definition) error {
	return c.Call(ctx, "adjust", def, nil)
}

// Down takes the resource down; its replicator ends.
func (c *Client) Down(ctx context.Context, force bool) error {
	return c.Call(ctx, "down", Args{Volume: All, Force: force}, nil)
}

// Do runs a command: attach, connect, primary, ...
func (c *Client) Do(ctx context.Context, command string, a Args) error {
	return c.Call(ctx, "do/"+url.PathEscape(command), a, nil)
}

func volumeQuery(volume int) url.Values {
	if volume == All {
		return nil
	}
	return url.Values{"volume": {strconv.Itoa(volume)}}
}

// Call posts in to path and reads the answer into out, unless out is nil.
func (c *Client) Call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodPost, path, nil, nil, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, answerBytesMax))
		return c.Translate(err)
	}
	return c.decode(resp.Body, out)
}

// Get reads the answer at path into out.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.decode(resp.Body, out)
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	v := new(T)
	if err := c.Get(ctx, path, query, v); err != nil {
		return nil, err
	}
	return v, nil
}

// Copy copies the answer at path to w. An answer that was cut short is an error.
func (c *Client) Copy(ctx context.Context, path string, query url.Values, w io.Writer) error {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return c.Translate(err)
}

func (c *Client) decode(r io.Reader, out any) error {
	if err := json.NewDecoder(io.LimitReader(r, answerBytesMax)).Decode(out); err != nil {
		return c.Translate(fmt.Errorf("answer of %s: %w", c.what, err))
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, Errorf(Usage, "%w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.Translate(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, requestBytesMax))
	if err != nil {
		return nil, c.Translate(err)
	}
	e := new(Error)
	if json.Unmarshal(text, e) != nil || e.Code == "" {
		return nil, Errorf(Failed, "%s: HTTP status %d: %s", c.what, resp.StatusCode, bytes.TrimSpace(text))
	}
	return nil, e
}

// Translate makes an *Error of a failure of the transport. A server that was not there did nothing; one that was lost
// in the middle may have done it.
func (c *Client) Translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return Errorf(NotRunning, "%s is not running", c.what)
	case errors.Is(err, fs.ErrPermission):
		return Errorf(Denied, "%s: its socket may not be opened by this user", c.what).WithHint("run it as root")
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return Errorf(Unknown, "%s: %w", c.what, err)
}

// Events calls each for every event after that id, until ctx ends, each returns an error or the stream breaks. after 0
// begins with a status. The error is never nil: io.EOF means that the server ended the stream.
func (c *Client) Events(ctx context.Context, after uint64, each func(Event) error) error {
	var header http.Header
	if after > 0 {
		header = http.Header{"Last-Event-Id": {strconv.FormatUint(after, 10)}}
	}
	resp, err := c.do(ctx, http.MethodGet, "events", nil, header, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), lineBytesMax)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok { // id and event stand in the data too
			continue
		}
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("event of %s: %w", c.what, err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return c.Translate(err)
	}
	return io.EOF
}
