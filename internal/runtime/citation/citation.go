// Package citation finds the sources in results of tools that search: the pages of a web search, and the documents of
// a search in an organization's data. It reads the JSON and the texts that search servers return.
package citation

import (
	"encoding/json"
	"iter"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// Max is the maximum number of sources of one kind, in a result and in an answer.
	Max = 8
	// maxTitle and maxURL bound the parts of a source, in characters and in bytes. A longer title is cut, and a page
	// with a longer URL is left out, because a cut URL leads elsewhere.
	maxTitle = 256
	maxURL   = 1024
	// maxLocal bounds the name of a document, in characters.
	maxLocal = 512
	// maxParsed is the part of a result that is searched, in bytes.
	maxParsed = 256 << 10
	// maxLine is the length of a line that is searched, in bytes.
	maxLine = 4 << 10
	// maxDepth bounds the nesting of JSON that is searched.
	maxDepth = 8
)

// Page is a page of the web.
type Page struct {
	// Title is one line of at most 256 characters. It may be empty.
	Title string `json:"title,omitempty"`
	// URL is an absolute http or https URL of at most 1024 bytes, without credentials.
	URL string `json:"url"`
}

// Pages returns the pages in the result of a web search, in their order and without repeats, at most Max.
func Pages(result string) []Page {
	return Merge(pagesIn(head(result)))
}

// Merge returns the usable pages of lists in their order, without repeats of a URL, at most Max.
func Merge(lists ...[]Page) []Page {
	var all []Page
	for _, list := range lists {
		for _, p := range list {
			u, ok := usable(p.URL)
			if !ok || len(all) == Max || slices.ContainsFunc(all, func(other Page) bool { return other.URL == u }) {
				continue
			}
			title, _ := untrusted.Cap(untrusted.StripLine(p.Title), maxTitle)
			all = append(all, Page{Title: title, URL: u})
		}
	}
	return all
}

// Documents returns the names of the documents in the result of a search of local data, in their order and without
// repeats, at most Max.
func Documents(result string) []string {
	text := head(result)
	var found []string
	if value, ok := parse(text); ok {
		walk(value, 0, func(o map[string]any) {
			if name := first(o, "source", "uri", "path", "file", "url"); name != "" {
				found = append(found, name)
			}
		})
	} else {
		for line := range lines(text) {
			if m := labelled.FindStringSubmatch(line); m != nil && isOneOf(m[1], "source", "uri", "path", "file", "url") {
				found = append(found, m[2])
				continue
			}
			for _, p := range links(line) {
				found = append(found, p.URL)
			}
		}
	}
	return MergeDocuments(found)
}

// MergeDocuments returns the names of lists in their order, each as one line, without repeats, at most Max.
func MergeDocuments(lists ...[]string) []string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		name, _ = untrusted.Cap(untrusted.StripLine(name), maxLocal) // because a tool may return any text
		if name != "" && len(all) < Max && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// head returns the part of a result that is searched.
func head(result string) string { return strings.TrimSpace(result[:min(len(result), maxParsed)]) }

func parse(text string) (value any, ok bool) {
	if text == "" || text[0] != '{' && text[0] != '[' {
		return nil, false
	}
	return value, json.Unmarshal([]byte(text), &value) == nil
}

// walk calls visit for each object in a value, in order, and each object before those inside it. The members of an
// object are visited in the order of their names, because JSON gives them none.
func walk(value any, depth int, visit func(map[string]any)) {
	if depth > maxDepth {
		return
	}
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			walk(one, depth+1, visit)
		}
	case map[string]any:
		visit(v)
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			walk(v[name], depth+1, visit)
		}
	}
}

// first returns the first member of an object that is a text and not empty.
func first(o map[string]any, names ...string) string {
	for _, name := range names {
		if text, ok := o[name].(string); ok && strings.TrimSpace(text) != "" {
			return text
		}
	}
	return ""
}

var (
	// labelled is a line such as "URL: https://example.com", perhaps in a list and in bold type.
	labelled = regexp.MustCompile(`^\s*(?:[-*]\s+|\[?\d+[.)\]]\s*)?\**([A-Za-z]+)\**:\**\s*(.+?)\s*$`)
	// numbered is a line such as "1. Title of a page".
	numbered = regexp.MustCompile(`^\s*\[?\d+[.)\]]\s*\**(.+?)\**\s*$`)
	// alone is a line that is nothing but a URL, perhaps in a list.
	alone = regexp.MustCompile(`^\s*(?:[-*]\s+|\[?\d+[.)\]]\s*)?(https?://\S+)\s*$`)
)

// pagesIn returns the pages in a result, in order, with repeats and with URLs that cannot be used.
func pagesIn(text string) []Page {
	var found []Page
	if value, ok := parse(text); ok {
		walk(value, 0, func(o map[string]any) {
			// An image or a site's icon has a URL, too, but neither a title nor a text.
			address := first(o, "url", "link", "href", "uri")
			title := first(o, "title", "name")
			if address != "" && (title != "" || first(o, "snippet", "description", "content", "text") != "") {
				found = append(found, Page{title, address})
			}
		})
		return found
	}
	title := ""
	for line := range lines(text) {
		m := labelled.FindStringSubmatch(line)
		linked := links(line)
		switch {
		case m != nil && isOneOf(m[1], "title"):
			title = m[2]
		case m != nil && isOneOf(m[1], "url", "link", "source") && isURL(m[2]):
			found, title = append(found, Page{title, m[2]}), ""
		case alone.MatchString(line):
			found, title = append(found, Page{title, alone.FindStringSubmatch(line)[1]}), ""
		case len(linked) > 0:
			found, title = append(found, linked...), ""
		case numbered.MatchString(line):
			title = numbered.FindStringSubmatch(line)[1]
		}
	}
	return found
}

// lines returns the lines of a text without their ends. It leaves out lines that are too long to be those of a list of
// sources.
func lines(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if line = strings.TrimRight(line, "\r\n"); len(line) <= maxLine && !yield(line) {
				return
			}
		}
	}
}

// links returns the links in a line, at most Max: those of Markdown, and URLs in angle brackets, whose titles are
// before them.
func links(line string) []Page {
	var found []Page
	for rest := line; len(found) < Max; {
		title, after, ok := strings.Cut(rest, "](")
		if !ok {
			break
		}
		rest = after
		address, _, ok := strings.Cut(after, ")")
		if begin := strings.LastIndex(title, "["); ok && begin >= 0 && isURL(address) {
			found = append(found, Page{title[begin+1:], address})
		}
	}
	if title, after, ok := strings.Cut(line, "<"); ok && isURL(after) {
		if address, _, ok := strings.Cut(after, ">"); ok {
			found = append(found, Page{title, address})
		}
	}
	return found
}

func isOneOf(label string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, label) })
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// brackets escapes the characters that end a URL in angle brackets.
var brackets = strings.NewReplacer("<", "%3C", ">", "%3E")

// usable returns a URL without its fragment, and whether it can be cited.
func usable(text string) (address string, ok bool) {
	text = strings.TrimSpace(text)
	if len(text) > maxURL || untrusted.StripLine(text) != text {
		return "", false
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "", false
	}
	u.Fragment, u.RawFragment = "", ""
	return brackets.Replace(u.String()), true // a query keeps its characters
}

// markdown makes text from outside safe within Markdown: a title of a page must not become a link or a picture.
var markdown = strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`, "`", "\\`", "*", `\*`, "_", `\_`, "&", `\&`)

// List returns a list of sources in Markdown, without a line break at its end. It is empty if there are no sources.
func List(local []string, web []Page) string {
	if len(local)+len(web) == 0 {
		return ""
	}
	lines := []string{"Sources:"}
	for _, name := range local {
		lines = append(lines, "- "+markdown.Replace(name))
	}
	for _, p := range web {
		line := "- "
		if p.Title != "" {
			line += markdown.Replace(p.Title) + ": "
		}
		lines = append(lines, line+"<"+p.URL+">")
	}
	return strings.Join(lines, "\n")
}
