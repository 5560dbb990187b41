// Browsers start no worker from a file. The search of a page that is opened as a file runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      this.inner.importScripts = (...urls) => Promise.all(urls.map(one => this.load(one)))
      this.ready = this.load(url)
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script")
        Object.assign(script, {src: url, onload: done, onerror: failed})
        this.inner.document.documentElement.append(script)
      })
    }
    async postMessage(data) {
      await this.ready
      this.inner.dispatchEvent(new MessageEvent("message", {data}))
    }
  }
