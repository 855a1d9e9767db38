# docs/reverse-proxies.md explains it.
vcl 4.1;

import std;

backend cidgate {
    .host = "127.0.0.1";
    .port = "8080";
    # Providers may take their time.
    .first_byte_timeout = 300s;
    .between_bytes_timeout = 60s;
}

sub vcl_recv {
    # Never what a client says of these: cidgate believes its proxy. "https" where a program before Varnish takes TLS.
    set req.http.X-Forwarded-Host = req.http.Host;
    set req.http.X-Forwarded-Proto = "http";
    set req.http.X-Request-Id = "varnish-" + req.xid;
    # No answer hangs on it, and Varnish would keep nothing beside it.
    unset req.http.Cookie;
    # Whether there may be a service worker is for cidgate to say.
    if ((req.method != "GET" && req.method != "HEAD") || req.http.Service-Worker) {
        return (pass);
    }
    # Vary names Accept: formats and JSON as they are asked for, one copy of a page for all browsers, one of the rest.
    if (req.http.Accept && req.http.Accept !~ "json|cbor|vnd\.ip|x-tar") {
        if (req.http.Accept ~ "text/html") {
            set req.http.Accept = "text/html";
        } else {
            set req.http.Accept = "*/*";
        }
    }
    # Several parts at once, and units that are no bytes: the whole file. Varnish would say 416.
    if (req.http.Range !~ "^bytes=(\d+-\d*|-\d+)$") {
        unset req.http.Range;
    }
    # A part is one of the plain bytes, never of compressed ones.
    if (req.http.Range) {
        unset req.http.Accept-Encoding;
    }
}

sub vcl_backend_fetch {
    # One copy of each file, plain, and Varnish compresses it: parts of what cidgate compressed would be parts of other bytes.
    if (!bereq.uncacheable) {
        unset bereq.http.Accept-Encoding;
    }
}

sub vcl_backend_response {
    # By itself Varnish keeps what says nothing for two minutes, and hands out anything for ten seconds after its time.
    if (!beresp.http.Cache-Control) {
        set beresp.uncacheable = true;
        return (deliver);
    }
    if (beresp.http.Cache-Control !~ "stale-while-revalidate") {
        set beresp.grace = 0s;
    }
    # What is past its time is asked for by its tag: an answer of 304 moves no bytes.
    if (beresp.http.ETag) {
        set beresp.keep = 1d;
    }
    if (std.integer(beresp.http.Content-Length, 1024) >= 1024 && beresp.http.Content-Type ~ "^(text/(html|plain|css|javascript|markdown|csv|xml)|application/(problem\+)?json|application/(xml|wasm)|image/svg\+xml)") {
        set beresp.do_gzip = true;
    }
}

sub vcl_deliver {
    # Otherwise a hit would have the id of the request that it was stored by.
    set resp.http.X-Request-Id = req.http.X-Request-Id;
}
