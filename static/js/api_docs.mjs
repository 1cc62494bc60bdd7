/**
 * Owns the API's documentation page: Swagger UI over the served schema, trying requests out as the visitor.
 */

import { csrfToken } from "./csrf.mjs";

const place = document.querySelector("[data-schema-url]");

globalThis.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.schemaUrl,
  presets: [globalThis.SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  // It would send the schema to another host.
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (!["GET", undefined].includes(request.method)) request.headers["X-CSRFToken"] = csrfToken();
    return request;
  },
});
